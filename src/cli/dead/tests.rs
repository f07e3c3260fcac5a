use super::*;

#[test]
fn only_queues_of_dead_letters_are_touched() {
    for wrong in ["sms", ".dead", "sms.deads", "sms.wait.4s"] {
        assert!(is_dead_letter_queue(wrong).is_err(), "{wrong}");
    }
    assert!(is_dead_letter_queue("sms.dead").is_ok());
}
