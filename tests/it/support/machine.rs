//! How the tests share two processors.
//!
//! Most tests wait nearly all of the time: for a lease to end, for a wait queue, for a broker to
//! start. So more of them run at once than there are processors: each holds a share of the machine
//! from its first server or replica on. A fleet of replicas takes [`two`], before anything else.
//!
//! Shares belong to the thread of a test (the harness gives each test one) and end with it, also where
//! the test fails.

use std::cell::RefCell;
use std::sync::{Condvar, Mutex};

/// This many tests run at once, on two processors. With eight, processes wait for each other for seconds.
const SHARES: usize = 5;

/// Takes a share, unless this test has one.
pub fn share() {
    // A worker of a runtime belongs to a test that has its share.
    let thread = std::thread::current();
    if !thread.name().is_some_and(|name| name.starts_with("tokio-")) {
        take(1);
    }
}

/// Takes two shares, until the test ends.
///
/// # Panics
/// If this test has a share already: two tests that want more would wait for each other.
pub fn two() {
    take_first(2);
}

/// Takes all shares, until the test ends: for programs of others that must wake in time, on a machine of their own.
///
/// # Panics
/// As [`two`].
pub fn all() {
    take_first(SHARES);
}

fn take_first(shares: usize) {
    let held = MINE.with_borrow(|mine| mine.as_ref().map(|held| held.0));
    assert_eq!(held, None, "a test asks for more before anything else");
    take(shares);
}

#[derive(Debug)]
struct Free {
    shares: usize,
    /// The places in the line so far, and which of them is at its front: a test that wants many shares
    /// is not overtaken by others that want few.
    places: u64,
    front: u64,
}

static FREE: Mutex<Free> = Mutex::new(Free {
    shares: SHARES,
    places: 0,
    front: 0,
});
static CHANGED: Condvar = Condvar::new();

thread_local! {
    static MINE: RefCell<Option<Held>> = const { RefCell::new(None) };
}

/// Shares that a test holds.
struct Held(usize);

impl Drop for Held {
    fn drop(&mut self) {
        FREE.lock().unwrap().shares += self.0;
        CHANGED.notify_all();
    }
}

fn take(shares: usize) {
    MINE.with_borrow_mut(|mine| {
        mine.get_or_insert_with(|| {
            let mut free = FREE.lock().unwrap();
            let own = free.places;
            free.places += 1;
            let waits = |free: &mut Free| free.front != own || free.shares < shares;
            free = CHANGED.wait_while(free, waits).unwrap();
            free.front += 1;
            free.shares -= shares;
            CHANGED.notify_all();
            Held(shares)
        });
    });
}
