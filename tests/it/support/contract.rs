//! One suite of tests for every backend of a port.

/// `contract!(redis, memory; (test, …))`: a module for each backend with all the tests in it. A
/// backend is an async function that makes the argument of each test, which is an async
/// function too.
macro_rules! contract {
    ($backend:ident: $($test:ident),+ $(,)?) => {
        mod $backend {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $test() {
                    super::$test(super::$backend().await).await;
                }
            )+
        }
    };
    ($($backend:ident),+; $tests:tt) => {
        $(contract!(@each $backend $tests);)+
    };
    (@each $backend:ident ($($test:ident),+ $(,)?)) => {
        contract!($backend: $($test),+);
    };
}
pub(crate) use contract;
