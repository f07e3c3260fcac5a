//! Plain signs for typographic ones.
//!
//! Problem: one `’` that a word processor or a phone wrote turns a text into UCS-2, which holds less than half as much.
//! So a sign that the alphabet lacks may be written as the plain one that looks alike or means the same. Letters are
//! never changed: another letter is another word.
//!
//! The signs are those of the lists "Smart Encoding" (Twilio) and "Auto Encoding" (Sinch), without letters.

use std::borrow::Cow;

/// Each plain sign with those that are written as it.
const SIGNS: [(&str, &str); 21] = [
    ("\"", "“”„‟«»ʺˮ❝❞〝〞″"),
    ("'", "‘’‚‛ʻʼʽʹˈ´`｀ˊˋ❛❜′‵"),
    ("-", "‐‑‒–—―−﹘﹣⁃"),
    ("<", "‹"),
    (">", "›"),
    ("...", "…"),
    ("..", "‥"),
    (".", "․"),
    ("*", "•‧∙·⁎∗"),
    ("/", "⁄∕"),
    (":", "∶"),
    ("|", "¦"),
    ("^", "ˆ"),
    ("~", "˜∼"),
    ("_", "‗"),
    ("!", "ǃ"),
    ("!!", "‼"),
    ("%", "٪"),
    ("x", "×"),
    // Spaces of any width, and the tabulator.
    (
        " ",
        "\u{9}\u{a0}\u{2000}\u{2001}\u{2002}\u{2003}\u{2004}\u{2005}\u{2006}\u{2007}\u{2008}\u{2009}\u{200a}\
         \u{202f}\u{205f}\u{3000}",
    ),
    // What has no width: places where a word may break or must not, and marks of direction.
    ("", "\u{ad}\u{200b}\u{200c}\u{200e}\u{200f}\u{2060}\u{feff}"),
];

/// The text with plain signs for what `has` says that the alphabet lacks.
pub(super) fn written(text: &str, has: impl Fn(char) -> bool) -> Cow<'_, str> {
    if text.chars().all(&has) {
        return Cow::Borrowed(text);
    }
    let mut written = String::with_capacity(text.len());
    for character in text.chars() {
        match plain(character).filter(|_| !has(character)) {
            Some(plain) => written.push_str(&plain),
            None => written.push(character),
        }
    }
    Cow::Owned(written)
}

fn plain(character: char) -> Option<Cow<'static, str>> {
    let found = SIGNS.iter().find(|(_, signs)| signs.contains(character));
    let wide = || match character {
        // The wide forms of ASCII.
        '\u{ff01}'..='\u{ff5e}' => char::from_u32(u32::from(character) - 0xfee0),
        _ => None,
    };
    match found {
        Some((plain, _)) => Some(Cow::Borrowed(*plain)),
        None => wide().map(|narrow| Cow::Owned(narrow.to_string())),
    }
}
