//! How errors of Redis are sorted, and that no password is shown.

use super::*;

#[test]
fn a_password_that_redis_quotes_is_hidden() {
    let text = "unknown command 'AUTH', with args beginning with: 'hunter2'";
    let hidden = hide(text.to_owned(), ["other", "hunter2"].into_iter());
    assert!(!hidden.contains("hunter2"), "{hidden}");
    assert_eq!(hide("plain".to_owned(), [""].into_iter()), "plain");
}

#[test]
fn errors_are_sorted_by_what_to_do_about_them() {
    let io = RedisError::from(io::Error::other("gone"));
    assert_eq!(fault(&io), ErrorClass::Broken);
    let read_only = RedisError::from((ServerErrorKind::ReadOnly.into(), "a replica"));
    assert_eq!(fault(&read_only), ErrorClass::Broken);
    let loading = RedisError::from((ServerErrorKind::BusyLoading.into(), "loading"));
    assert_eq!(fault(&loading), ErrorClass::Busy);
    let busy = redis::make_extension_error("BUSY".to_owned(), None);
    assert_eq!(fault(&busy), ErrorClass::Busy);
    let wrong = redis::make_extension_error("WRONGTYPE".to_owned(), None);
    assert_eq!(fault(&wrong), ErrorClass::Refused);
    assert!(!store_error(&wrong, std::iter::empty()).is_transient());
    let moved = RedisError::from((ServerErrorKind::Moved.into(), "elsewhere"));
    assert_eq!(fault(&moved), ErrorClass::Moved);
    assert!(store_error(&moved, std::iter::empty()).is_transient());
}
