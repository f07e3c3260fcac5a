//! Which route of a shared queue sends a message.
//!
//! Problem: routes may share a queue, each with its own limits and its own downstream. A message that one of
//! them has received and cannot send (its downstream is away, its limit is frozen, its hours are over) would
//! wait there, while another route could send it. So it moves to another route of the same replica. The
//! broker does not notice: no message is returned, and no attempt is counted.
//!
//! A **standby** consumes nothing itself. It gets the messages that its main route cannot send, and some of them while
//! the main route is late.

/// How a route stands, as the other routes of its queue see it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RouteStanding {
    /// The route sends what it gets, within `max_hold`.
    pub sends: bool,
    /// The oldest message of the route waits for longer than its `max_delay`.
    pub is_late: bool,
    /// Messages that it holds, or that are on the way to it.
    pub held: u64,
    /// The downstream of the route is away, and a probe is due.
    pub probes: bool,
    /// The route consumes nothing itself, and takes messages of its main route.
    pub is_standby: bool,
}

/// Where a message of a route moves, by its place in `others`; `None`: it stays.
///
/// `others` are the routes that may take it: those that consume the queue, and the standbys of this route.
/// `received_by` is the one of them that received the message, if this route did not. A message goes back to that route
/// when the route sends again: the message takes a place in the prefetch of the route, which might have no other
/// message to send. If that route needs a message for a probe and holds none, one message goes back to it. If no route
/// sends, every message goes back to the route that received it: then each route has messages to probe with.
///
/// # Panics
/// When `received_by` is no place in `others`.
#[must_use]
pub fn route_for(
    own: RouteStanding,
    others: &[RouteStanding],
    received_by: Option<usize>,
) -> Option<usize> {
    let is_wanted_there = |place: &usize| {
        let standing = others[*place];
        let is_wanted = standing.probes && standing.held == 0;
        standing.sends && !(own.is_standby && standing.is_late) || is_wanted
    };
    if let Some(place) = received_by.filter(is_wanted_there) {
        return Some(place);
    }
    if own.sends {
        return None;
    }
    let sending = others.iter().enumerate().filter(|(_, other)| other.sends);
    let least = sending.min_by_key(|(_, other)| (other.is_standby, other.held));
    least.map(|(place, _)| place).or(received_by)
}

/// The standby that takes a message that just came to a late route, by its place in `others`: one that holds less than
/// the route. `None`: the message stays.
#[must_use]
pub fn standby_to_help(own: RouteStanding, others: &[RouteStanding]) -> Option<usize> {
    let helps = |other: &RouteStanding| other.is_standby && other.sends && other.held < own.held;
    let is_helped = own.is_late && !own.is_standby;
    others.iter().position(helps).filter(|_| is_helped)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SENDS: RouteStanding = RouteStanding {
        sends: true,
        is_late: false,
        held: 10,
        probes: false,
        is_standby: false,
    };
    const SHUT: RouteStanding = RouteStanding {
        sends: false,
        ..SENDS
    };
    const STANDBY: RouteStanding = RouteStanding {
        is_standby: true,
        held: 0,
        ..SENDS
    };
    const SHUT_STANDBY: RouteStanding = RouteStanding {
        sends: false,
        ..STANDBY
    };
    const LATE: RouteStanding = RouteStanding {
        is_late: true,
        ..SENDS
    };

    #[test]
    fn a_route_that_sends_keeps_its_messages() {
        assert_eq!(route_for(SENDS, &[SENDS, STANDBY], None), None);
        assert_eq!(route_for(SENDS, &[], None), None);
        assert_eq!(route_for(SENDS, &[SHUT], Some(0)), None, "home cannot send");
    }

    #[test]
    fn what_a_route_cannot_send_moves_to_the_one_that_holds_least() {
        let busy = RouteStanding { held: 99, ..SENDS };
        assert_eq!(route_for(SHUT, &[busy, SENDS], None), Some(1));
        assert_eq!(route_for(SHUT, &[SHUT, busy], None), Some(1));
        assert_eq!(route_for(SHUT, &[SHUT], None), None, "it stays where it is");
        assert_eq!(route_for(SHUT, &[STANDBY, busy], None), Some(1));
        assert_eq!(route_for(SHUT, &[STANDBY, SHUT], None), Some(0));
    }

    #[test]
    fn a_message_goes_home_where_that_sends_or_where_no_route_does() {
        assert_eq!(route_for(SENDS, &[SHUT, SENDS], Some(1)), Some(1));
        assert_eq!(route_for(SENDS, &[LATE], Some(0)), Some(0));
        assert_eq!(route_for(SHUT, &[SHUT, SHUT], Some(1)), Some(1));
        assert_eq!(route_for(SHUT, &[SENDS, SHUT], Some(1)), Some(0));
        assert_eq!(route_for(STANDBY, &[SENDS], Some(0)), Some(0));
        let mut probing = RouteStanding {
            probes: true,
            ..SHUT
        };
        assert_eq!(route_for(SENDS, &[probing], Some(0)), None, "it has some");
        probing.held = 0;
        assert_eq!(route_for(SENDS, &[probing], Some(0)), Some(0));
        assert_eq!(route_for(STANDBY, &[LATE], Some(0)), None, "it helps");
        assert_eq!(route_for(SHUT_STANDBY, &[SHUT], Some(0)), Some(0));
    }

    #[test]
    fn a_route_that_is_late_is_helped_by_its_standby_with_half_of_what_comes() {
        assert_eq!(standby_to_help(LATE, &[SENDS, STANDBY]), Some(1));
        assert_eq!(standby_to_help(SENDS, &[STANDBY]), None);
        let full = RouteStanding {
            held: LATE.held,
            ..STANDBY
        };
        assert_eq!(standby_to_help(LATE, &[full]), None, "as many as the route");
        assert_eq!(standby_to_help(LATE, &[SHUT_STANDBY]), None);
    }

    /// While no route changes, a message that moved stays where it is.
    #[test]
    fn no_message_goes_in_circles() {
        let consuming = [
            SENDS,
            SHUT,
            LATE,
            RouteStanding {
                sends: false,
                ..LATE
            },
        ];
        let any = consuming.into_iter().chain([STANDBY, SHUT_STANDBY]);
        for home in consuming {
            for other in any.clone() {
                for third in any.clone() {
                    let at_home = [other, third];
                    let Some(to) = route_for(home, &at_home, None) else {
                        continue;
                    };
                    // As seen by the route that has the message now.
                    let (own, rest) = (at_home[to], at_home[1 - to]);
                    let next = route_for(own, &[home, rest], Some(0));
                    assert_eq!(next, None, "{home:?} {other:?} {third:?}");
                }
            }
        }
    }
}
