//! Whole lives of a message, with calls drawn at random.

use proptest::prelude::*;

use super::*;

/// One message, called as often as what follows asks for it.
#[derive(Clone, Debug)]
struct Said {
    outcome: Outcome,
    reply: Result<AnswerStatus, Silence>,
    maybe_delivered: bool,
    has_rest: bool,
    /// The store opens the breaker, or closes it, before the call.
    breaker: Option<bool>,
    /// Another message is accepted, or refused, before the call.
    other: Option<bool>,
    fraction: f64,
}

fn said() -> impl Strategy<Value = Said> {
    let wait = (0_u64..20_000).prop_map(Duration::from_millis);
    let outcome = prop_oneof![
        1 => Just(Outcome::Accepted),
        1 => Just(Outcome::Permanent),
        4 => wait.clone().prop_map(|wait| Outcome::Throttled { wait }),
        2 => wait.clone().prop_map(|wait| Outcome::Held { wait }),
        4 => proptest::option::of(wait).prop_map(|wait| Outcome::Transient { wait }),
    ];
    let reply = prop_oneof![
        4 => prop_oneof![Just(200), Just(401), Just(408), Just(429), Just(500)].prop_map(|number| Ok(status(number))),
        2 => Just(Err(Silence::Timeout)),
        1 => Just(Err(Silence::Connection)),
        1 => Just(Err(Silence::Unreadable)),
    ];
    let (delivered, rest) = (proptest::bool::weighted(0.8), proptest::bool::weighted(0.2));
    let (breaker, other) = (
        proptest::option::of(any::<bool>()),
        proptest::option::of(any::<bool>()),
    );
    (
        outcome,
        reply,
        delivered,
        rest,
        breaker,
        other,
        0.0..1.0_f64,
    )
        .prop_map(
            |(outcome, reply, delivered, has_rest, breaker, other, fraction)| Said {
                outcome,
                reply,
                // An answer came: the request was delivered.
                maybe_delivered: delivered || reply.is_ok(),
                has_rest,
                breaker,
                other,
                fraction,
            },
        )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    /// Whatever the downstream answers, and whatever happens to the breaker and to other messages meanwhile.
    #[test]
    fn one_message_is_called_within_its_rules(
        calls in proptest::collection::vec(said(), 1..60),
        max_attempts in 1_u32..5,
        never_repeats in any::<bool>(),
    ) {
        let rules = CallRules { max_attempts, ..RULES };
        let once = if never_repeats { OnceRule::NeverRepeats } else { OnceRule::MayRepeat };
        let (mut gate, mut refusals) = (Gate::new(None, Some(breaker())), Refusals::default());
        let (mut tries, mut version, mut passed) = (Tries::default(), 0, Duration::ZERO);
        let (mut maybe_taken, mut counted) = (0, 0);
        for (said, number) in calls.iter().zip(2..) {
            let moment = now(passed);
            if let Some(opens) = said.breaker {
                version += 1;
                let status = BreakerStatus {
                    now: moment.store,
                    version,
                    until: opens.then(|| moment.store + SECOND),
                    may_probe: opens,
                    changed: true,
                    why: "503".into(),
                };
                gate.note_answer(Some(&status), moment.local);
            }
            if let Some(accepted) = said.other {
                let other = match accepted {
                    true => answered(Outcome::Accepted, 200),
                    false => answered(THROTTLED, 429),
                };
                let other = CallEnd { now: moment, message: number, ..other };
                decide(&other, &mut gate, &mut refusals, |at| at);
            }
            let is_probe = gate.note_call(moment.local);
            let call = CallEnd {
                now: moment,
                is_probe,
                maybe_delivered: said.maybe_delivered,
                has_rest: said.has_rest,
                renewed: false,
                tries,
                once,
                rules,
                fraction: said.fraction,
                ..call(said.outcome, said.reply)
            };
            let follows = decide(&call, &mut gate, &mut refusals, |at| at);
            maybe_taken += u32::from(call.maybe_taken());
            prop_assert!(maybe_taken <= max_attempts, "it may have been taken {} times", maybe_taken);
            let refused = matches!(said.outcome, Outcome::Throttled { .. } | Outcome::Held { .. });
            counted += follows.tries.attempts - tries.attempts;
            prop_assert!(counted <= max_attempts);
            if refused && !call.maybe_taken() {
                prop_assert_eq!(follows.tries.attempts, tries.attempts, "a refusal is no failure");
                prop_assert!(follows.next != NextStep::Dead(DeadReason::AttemptsExhausted));
            }
            prop_assert_eq!(follows.next == NextStep::Done, follows.claims == ClaimsEnd::Accepted);
            let is_accepted = said.outcome == Outcome::Accepted;
            if never_repeats && call.maybe_taken() && !is_accepted {
                prop_assert_eq!(follows.next, NextStep::Dead(DeadReason::Unknown));
                prop_assert_eq!(follows.claims, ClaimsEnd::Unknown);
            }
            let may_freeze = matches!(said.outcome, Outcome::Throttled { .. });
            prop_assert!(follows.freeze_for.is_none() || may_freeze);
            match follows.next {
                NextStep::Done | NextStep::Dead(_) => return Ok(()),
                NextStep::Again { waits: NextWait::InQueue(wait, _), .. } => {
                    prop_assert!(wait > rules.max_hold);
                    prop_assert!(!said.has_rest || wait > REST, "its rest would be forgotten");
                }
                NextStep::Again { .. } => {}
            }
            let wait = wait_of(follows.next, moment).unwrap_or_default();
            if let Outcome::Throttled { wait: asked } | Outcome::Held { wait: asked } = said.outcome {
                prop_assert!(wait >= asked, "called before the answer allows it");
            }
            let left = follows.tries;
            tries = match follows.next {
                NextStep::Again { waits: NextWait::InQueue(..), .. } => left.moved(),
                _ => left,
            };
            passed += wait.max(Duration::from_millis(1));
        }
    }

    /// What was taken and what is corrected make what was used.
    #[test]
    fn a_correction_makes_the_estimate_what_was_used(estimate in 1_u32..1_000_000, said in 0_u64..10_000_000) {
        let estimate = Cost::new(NonZeroU32::new(estimate).expect("not zero"));
        let used = [AnswerUsage { estimate, units: Some(said), most: NonZeroU32::new(5_000_000) }];
        let call = CallEnd { used: &used, ..answered(Outcome::Accepted, 200) };
        match alone(&call).used[0] {
            Used::Known { units, correction } => {
                let counted = match correction {
                    None => estimate.units(),
                    Some(WrongEstimate::Less(less)) => estimate.units() - less.units(),
                    Some(WrongEstimate::More(more)) => estimate.units() + more,
                };
                prop_assert_eq!(counted, units.units());
                prop_assert_eq!(counted, said.max(1));
            }
            other => {
                prop_assert!(said > 5_000_000);
                prop_assert_eq!(other, Used::Implausible { most: 5_000_000 });
            }
        }
    }
}
