//! The token of a client: whether it is good, when the next one is asked for, and what its refusal means.
//!
//! A downstream refuses a token because it ended early, because the client may not call at all, or because of one call
//! or one route. Which of these it is shows in the calls before: a token that worked has ended, and one that never
//! worked will not work next time either. One that works and is young is good, so its refusal is about the call. One
//! that works for other routes is good, too, where the last call of this route was refused like this one.

use std::time::Duration;

use http::HeaderValue;
use tokio::time::Instant;

use super::{IssuedToken, TokenValue};
use crate::credentials::aws::Credentials;
use sluiced_core::backoff::Backoff;

/// The life of a token whose server does not say it.
const UNSAID: Duration = Duration::from_secs(300);
/// The longest life that is believed: over a longer one the clock may go wrong.
const LONGEST: Duration = Duration::from_secs(24 * 3600);
/// A token with a shorter life has ended when its call arrives.
const SHORTEST: Duration = Duration::from_secs(2);

/// Between two requests that fail.
const REQUEST_BACKOFF: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(30));
/// A token that works and is refused sooner than this is not replaced: a message that is refused for a reason of its
/// own would ask for tokens without end.
const NEW: Duration = Duration::from_secs(5);
/// Between two tokens that never worked.
const REFUSED: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(300));

#[derive(Default)]
pub(super) struct TokenState {
    token: Option<Token>,
    /// How many there were.
    count: u64,
    failed: Option<FetchFailure>,
    /// This many in a row were refused although they never worked.
    refused: u32,
}

pub(super) struct Token {
    gives: TokenValue,
    number: u64,
    since: Instant,
    /// A call with it was answered, and not refused.
    works: bool,
    renew_at: Instant,
    ends: Instant,
}

/// A token for one call.
#[derive(Clone)]
pub(crate) struct CallToken {
    gives: TokenValue,
    /// By which [`TokenState::note_answer`] knows it.
    pub(crate) number: u64,
}

impl CallToken {
    /// The header `Authorization`, if it is that.
    pub(crate) const fn header(&self) -> Option<&HeaderValue> {
        match &self.gives {
            TokenValue::Header(header) => Some(header),
            TokenValue::Aws(_) => None,
        }
    }

    /// The credentials of the call's signature, if it is that.
    pub(crate) fn credentials(&self) -> Option<&Credentials> {
        match &self.gives {
            TokenValue::Header(_) => None,
            TokenValue::Aws(credentials) => Some(credentials),
        }
    }
}

/// There is no new token before a time.
struct FetchFailure {
    why: String,
    times: u32,
    again_at: Instant,
}

/// What follows from an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct AnswerEffect {
    /// The call was refused, and another one has another token.
    pub(super) is_replaced: bool,
    /// The next token may be due at another time.
    pub(super) is_rescheduled: bool,
}

impl Token {
    /// What was asked for at `since` and is there `now`. It is renewed after three to four fifths of its life: replicas
    /// that begin together do not ask together each time. `fraction`: random, from 0 to 1.
    ///
    /// # Errors
    /// Why it cannot be used, for a person.
    pub(super) fn new(
        IssuedToken { gives, life }: IssuedToken,
        since: Instant,
        now: Instant,
        fraction: f64,
    ) -> Result<Self, String> {
        let life = life.unwrap_or(UNSAID).min(LONGEST);
        if life < SHORTEST {
            return Err(format!(
                "what it gives lasts for {life:?}, which is too short to use it"
            ));
        }
        let renew_at = since + life.mul_f64(fraction.mul_add(0.2, 0.6));
        // Its server counts from when it made the token, and the call takes a moment.
        let ends = since + life.saturating_sub(Duration::from_secs(1));
        if ends <= now {
            return Err(format!(
                "what it gives lasts for {life:?}, and it took longer than that"
            ));
        }
        Ok(Self {
            gives,
            number: 0,
            since,
            works: false,
            // Not at once, or it would be asked for without a pause.
            renew_at: renew_at.max(now + Duration::from_millis(500)),
            ends,
        })
    }
}

impl TokenState {
    /// A token, or why there is none. `None`: it is being fetched.
    pub(super) fn current(&self, now: Instant) -> Option<Result<CallToken, String>> {
        if let Some(token) = self.token.as_ref().filter(|token| now < token.ends) {
            return Some(Ok(CallToken {
                gives: token.gives.clone(),
                number: token.number,
            }));
        }
        let failed = self.failed.as_ref();
        failed.map(|failed| Err(failed.why.clone()))
    }

    /// When the next token is asked for.
    pub(super) fn due_at(&self, now: Instant) -> Instant {
        match (&self.failed, &self.token) {
            // The downstream refused the tokens of another route, and this one has ended meanwhile.
            (Some(failed), Some(token)) if failed.times == 0 => failed.again_at.min(token.ends),
            (Some(failed), _) => failed.again_at,
            (None, Some(token)) => token.renew_at,
            (None, None) => now,
        }
    }

    /// A token was asked for.
    pub(super) fn note_fetch(&mut self, asked: Result<Token, String>, now: Instant) {
        match asked {
            Ok(mut token) => {
                self.count += 1;
                token.number = self.count;
                (self.token, self.failed) = (Some(token), None);
            }
            Err(why) => {
                let times = self.failed.as_ref().map_or(0, |failed| failed.times) + 1;
                let again_at = now + REQUEST_BACKOFF.ceiling(times);
                self.failed = Some(FetchFailure {
                    why,
                    times,
                    again_at,
                });
            }
        }
    }

    /// The downstream answered a call that had the token of this number. `is_refused`: because of the token it did not
    /// look at the call. `worked`: the last call of this route was not refused so.
    pub(super) fn note_answer(
        &mut self,
        is_refused: bool,
        worked: bool,
        number: u64,
        now: Instant,
    ) -> AnswerEffect {
        let nothing = AnswerEffect::default();
        let Some(token) = self.token.as_mut().filter(|token| token.number == number) else {
            return AnswerEffect {
                is_replaced: is_refused,
                ..nothing
            };
        };
        if !is_refused {
            token.works = true;
            return AnswerEffect {
                is_rescheduled: self.works(),
                ..nothing
            };
        }
        let is_new = now.saturating_duration_since(token.since) < NEW;
        if token.works && (is_new || !worked) {
            return nothing;
        }
        let is_replaced = token.works;
        if is_replaced {
            (self.token, self.failed) = (None, None);
        } else if self.failed.is_none() {
            self.refused += 1;
            self.failed = Some(FetchFailure {
                why: "the downstream refuses each one".to_owned(),
                times: 0,
                again_at: now + REFUSED.ceiling(self.refused),
            });
        }
        AnswerEffect {
            is_replaced,
            is_rescheduled: true,
        }
    }

    /// A token works. Returns whether one was awaited because others did not: this one is renewed in its own time.
    fn works(&mut self) -> bool {
        let waited = std::mem::take(&mut self.refused) > 0;
        let refused = self.failed.take_if(|failed| failed.times == 0);
        waited && refused.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OK: bool = false;
    const REFUSES: bool = true;

    fn header() -> TokenValue {
        TokenValue::Header(HeaderValue::from_static("Bearer a"))
    }

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn token(since: Instant) -> Token {
        Token {
            gives: header(),
            number: 0,
            since,
            works: false,
            renew_at: since + seconds(2_000),
            ends: since + seconds(3_600),
        }
    }

    /// A token that was fetched then; `answers`: of the calls with it since.
    fn with(since: Instant, answers: &[bool]) -> TokenState {
        let mut state = TokenState::default();
        state.note_fetch(Ok(token(since)), since);
        for is_refused in answers {
            state.note_answer(*is_refused, true, 1, since);
        }
        state
    }

    #[test]
    fn a_token_is_renewed_before_it_ends() {
        let since = Instant::now();
        let made = |life: Option<u64>, now| {
            let (gives, life) = (header(), life.map(seconds));
            Token::new(IssuedToken { gives, life }, since, now, 0.5)
        };
        for (life, believed) in [
            (Some(3_600), 3_600),
            (None, 300),
            (Some(99_999_999), 24 * 3_600),
        ] {
            let token = made(life, since).expect("it lasts");
            assert_eq!(token.ends, since + seconds(believed - 1));
            assert_eq!(token.renew_at, since + seconds(believed * 7 / 10));
        }
        assert!(made(Some(0), since).is_err());
        assert!(made(Some(5), since + seconds(4)).is_err(), "it took long");
    }

    #[test]
    fn a_token_that_worked_is_replaced_once_it_is_not_new() {
        let since = Instant::now();
        let mut state = with(since, &[OK]);
        let alone = state.note_answer(REFUSES, true, 1, since + seconds(4));
        assert_eq!(alone, AnswerEffect::default(), "it works for others");
        assert!(state.current(since).is_some());
        let now = since + seconds(5);
        let ended = state.note_answer(REFUSES, true, 1, now);
        assert!(ended.is_replaced && ended.is_rescheduled);
        assert!(state.current(now).is_none(), "calls wait for the next one");
        assert_eq!(state.due_at(now), now);
        // A call that had it, too.
        assert!(state.note_answer(REFUSES, true, 1, now).is_replaced);
        state.note_fetch(Ok(token(now)), now);
        assert!(state.note_answer(REFUSES, true, 1, now).is_replaced);
        assert!(matches!(
            state.current(now),
            Some(Ok(CallToken { number: 2, .. }))
        ));
    }

    /// The token is good for another route.
    #[test]
    fn a_route_that_is_refused_again_takes_no_token_away() {
        let since = Instant::now();
        let mut state = with(since, &[OK]);
        let now = since + seconds(60);
        assert_eq!(
            state.note_answer(REFUSES, false, 1, now),
            AnswerEffect::default()
        );
        assert!(state.current(now).is_some());
        assert!(state.note_answer(REFUSES, true, 1, now).is_replaced);
    }

    /// A client that may not call: each refusal counts, and tokens are asked for less and less often.
    #[test]
    fn a_token_that_never_worked_is_replaced_less_and_less_often() {
        let mut now = Instant::now();
        let mut state = with(now, &[]);
        let mut waits = Vec::new();
        for number in 1..=12 {
            // Far apart: each token is old when its answer comes.
            now += seconds(10);
            assert!(!state.note_answer(REFUSES, true, number, now).is_replaced);
            waits.push(state.due_at(now) - now);
            now = state.due_at(now);
            state.note_fetch(Ok(token(now)), now);
        }
        assert_eq!(waits[..3], [seconds(1), seconds(2), seconds(4)]);
        assert_eq!(waits[11], seconds(300));
        // One works at last: it is renewed in its own time.
        assert!(!state.note_answer(REFUSES, true, 13, now).is_replaced);
        assert!(state.note_answer(OK, true, 13, now).is_rescheduled);
        assert_eq!(state.due_at(now), now + seconds(2_000));
    }

    /// Another route that shares the token is not refused: it must not wait beyond the end of the token.
    #[test]
    fn a_token_that_ends_is_replaced_although_the_last_ones_were_refused() {
        let mut now = Instant::now();
        let mut state = with(now, &[]);
        for number in 1..=9 {
            now += seconds(10);
            state.note_answer(REFUSES, true, number, now);
            now = state.due_at(now);
            let ends = now + seconds(60);
            let short = Token { ends, ..token(now) };
            state.note_fetch(Ok(short), now);
        }
        state.note_answer(REFUSES, true, 10, now + seconds(10));
        assert_eq!(state.due_at(now), now + seconds(60));
    }

    #[test]
    fn without_a_token_the_reason_is_the_last_one() {
        let now = Instant::now();
        let mut state = TokenState::default();
        assert!(state.current(now).is_none());
        for wait in [1, 2, 4] {
            state.note_fetch(Err("503".to_owned()), now);
            assert_eq!(state.due_at(now), now + seconds(wait));
        }
        let said = state
            .current(now)
            .map(|found| found.map(|given| given.number));
        assert_eq!(said, Some(Err("503".to_owned())));
        // While the old one lasts, a failure changes nothing for calls.
        let mut state = with(now, &[OK]);
        state.note_fetch(Err("503".to_owned()), now);
        assert!(matches!(state.current(now), Some(Ok(_))));
        assert!(matches!(state.current(now + seconds(3_600)), Some(Err(_))));
    }
}
