//! Enums whose values have a text each: for a label of a metric, a word of the configuration, a name in the store.
//!
//! Problem: the values, the list of them all and the texts are the same list, and where it is written three times a
//! new value can be missing in one of them. So an enum is written once, with its texts, and the macro makes the rest.

/// An enum with a text for each value (`Value = "text",`), a constant `ALL` with every value in this order, and a
/// method that returns the text; its head stands behind the enum.
#[macro_export]
macro_rules! labelled {
    (
        $(#[$enum_meta:meta])*
        pub enum $enum:ident {
            $($(#[$meta:meta])* $value:ident = $text:literal,)*
        }

        $(#[$method_meta:meta])*
        pub const fn $method:ident(self) -> &'static str;
    ) => {
        $(#[$enum_meta])*
        pub enum $enum {
            $($(#[$meta])* $value,)*
        }

        impl $enum {
            /// Every value, in the order in which the enum lists them.
            pub const ALL: [Self; [$($text),*].len()] = [$(Self::$value),*];

            $(#[$method_meta])*
            #[must_use]
            pub const fn $method(self) -> &'static str {
                match self {
                    $(Self::$value => $text,)*
                }
            }
        }
    };
}
