//! Which route of a shared queue calls for a message.
//!
//! Problem: routes may share a queue, each with its own limits and its own downstream. What one of them has received
//! and cannot send (its downstream is away, its limit is frozen, its hours are over) would wait there, while another
//! route could send it. So it moves to another route of the same replica. The broker does not notice: no message is
//! returned, and no attempt is counted.
//!
//! A **standby** consumes nothing itself. It gets the messages that its main route cannot send, and some of them while
//! the main route is late. When the main route sends again, what the standby has not called for moves back.

/// How a route stands, as the other routes of its queue see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// It sends what it gets, within `max_hold`.
    pub sends: bool,
    /// Its oldest message waits for longer than its `max_delay`.
    pub is_late: bool,
    /// Messages that it holds.
    pub held: u64,
    pub is_standby: bool,
}

/// Which messages of a route move, and to which other one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    /// The place of the other route in the list of others.
    pub to: usize,
    /// All messages that the route holds. Otherwise only one that just came.
    pub all: bool,
}

/// Where the messages of a route move; `None`: nowhere.
///
/// `others` are those that may take them: the routes of the queue that consume it, and the standby of this route. For a
/// standby, its main route comes first.
#[must_use]
pub fn moves(own: Standing, others: &[Standing]) -> Option<Move> {
    let all = |to| Move { to, all: true };
    let sending = others.iter().enumerate().filter(|(_, other)| other.sends);
    if own.is_standby
        && others
            .first()
            .is_some_and(|main| main.sends && !main.is_late)
    {
        return Some(all(0));
    }
    if !own.sends {
        let least = sending.min_by_key(|(_, other)| (other.is_standby, other.held));
        return least.map(|(to, _)| all(to));
    }
    let is_helped = own.is_late && !own.is_standby;
    let mut standbys = sending.filter(|(_, other)| other.is_standby && other.held < own.held);
    let helper = standbys.next().filter(|_| is_helped);
    helper.map(|(to, _)| Move { to, all: false })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SENDS: Standing = Standing {
        sends: true,
        is_late: false,
        held: 10,
        is_standby: false,
    };
    const SHUT: Standing = Standing {
        sends: false,
        ..SENDS
    };
    const STANDBY: Standing = Standing {
        is_standby: true,
        held: 0,
        ..SENDS
    };
    const LATE: Standing = Standing {
        is_late: true,
        ..SENDS
    };
    const NOTHING: Option<Move> = None;

    fn all(to: usize) -> Option<Move> {
        Some(Move { to, all: true })
    }

    #[test]
    fn a_route_that_sends_keeps_its_messages() {
        assert_eq!(moves(SENDS, &[SENDS, STANDBY]), NOTHING);
        assert_eq!(moves(SENDS, &[]), NOTHING);
    }

    #[test]
    fn what_a_route_cannot_send_moves_to_the_one_that_holds_least() {
        let busy = Standing { held: 99, ..SENDS };
        assert_eq!(moves(SHUT, &[busy, SENDS]), all(1));
        assert_eq!(moves(SHUT, &[SHUT, busy]), all(1));
        assert_eq!(moves(SHUT, &[SHUT]), NOTHING, "it stays where it is");
    }

    #[test]
    fn a_standby_comes_behind_routes_that_consume() {
        let busy = Standing { held: 99, ..SENDS };
        assert_eq!(moves(SHUT, &[STANDBY, busy]), all(1));
        assert_eq!(moves(SHUT, &[STANDBY, SHUT]), all(0));
    }

    #[test]
    fn a_standby_gives_back_to_its_main_route_only() {
        assert_eq!(moves(STANDBY, &[SENDS]), all(0));
        assert_eq!(moves(STANDBY, &[SHUT, SENDS]), NOTHING);
        let shut = Standing {
            sends: false,
            ..STANDBY
        };
        assert_eq!(moves(shut, &[SHUT, SENDS]), all(1), "it cannot send either");
        assert_eq!(moves(shut, &[SHUT]), NOTHING);
    }

    #[test]
    fn a_route_that_is_late_is_helped_by_its_standby_with_half_of_what_comes() {
        let help = Some(Move { to: 1, all: false });
        assert_eq!(moves(LATE, &[SENDS, STANDBY]), help);
        assert_eq!(moves(STANDBY, &[LATE]), NOTHING, "it keeps them");
        let full = Standing {
            held: LATE.held,
            ..STANDBY
        };
        assert_eq!(moves(LATE, &[SENDS, full]), NOTHING, "as many as the route");
        let shut = Standing {
            sends: false,
            ..STANDBY
        };
        assert_eq!(moves(LATE, &[SENDS, shut]), NOTHING);
    }

    /// Whatever the others see of a route, a message does not go in circles: a move leads to a route that keeps it.
    #[test]
    fn no_message_goes_in_circles() {
        let each = [SENDS, SHUT, LATE, STANDBY];
        let (mut shut_standby, mut late_shut) = (STANDBY, LATE);
        shut_standby.sends = false;
        late_shut.sends = false;
        for own in each.into_iter().chain([shut_standby, late_shut]) {
            for other in each.into_iter().chain([shut_standby, late_shut]) {
                // Of two standbys none has the other among its others.
                let here = moves(own, &[other]);
                if own.is_standby && other.is_standby || here.is_none() {
                    continue;
                }
                assert_eq!(moves(other, &[own]), None, "{own:?} {other:?}");
            }
        }
    }
}
