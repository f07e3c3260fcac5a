//! How a list is read: blank lines, a line without an end, and where it goes on after a restart.

use super::*;

async fn all(text: &'static [u8]) -> Vec<(u64, Vec<u8>)> {
    let mut lines = InputLines::open(Input::Reader(Box::pin(text)))
        .await
        .unwrap_or_else(|error| panic!("{error}"));
    let mut out = Vec::new();
    while let Ok(Some(line)) = lines.next().await {
        assert!(!line.cut);
        out.push((line.number, line.text.to_vec()));
    }
    out
}

#[tokio::test]
async fn blank_lines_are_skipped_but_counted() {
    assert_eq!(
        all(b"{\"a\":1}\r\n\n  \n[2] \n3").await,
        [
            (1, b"{\"a\":1}".to_vec()),
            (4, b"[2]".to_vec()),
            (5, b"3".to_vec())
        ]
    );
    assert_eq!(all(b"").await, []);
    assert_eq!(all(b"\n\n").await, []);
}

#[tokio::test]
async fn a_line_without_end_does_not_fill_the_memory() {
    use tokio::io::AsyncReadExt;
    let endless = tokio::io::repeat(b'x').take(LONGEST as u64 + 10);
    let input = endless.chain(&b"\n{}\n"[..]);
    let mut lines = InputLines::open(Input::Reader(Box::pin(input)))
        .await
        .unwrap_or_else(|error| panic!("{error}"));
    let first = lines.next().await.ok().flatten();
    assert!(first.is_some_and(|line| line.cut && line.text.len() == LONGEST));
    let second = lines.next().await.ok().flatten();
    assert!(second.is_some_and(|line| !line.cut && line.number == 2));
}

mod checkpoint {
    use super::*;

    #[tokio::test]
    async fn a_list_goes_on_if_it_grew_and_starts_anew_if_it_is_another() {
        let dir = tempfile::tempdir().unwrap();
        let (path, list) = (dir.path().join("checkpoint"), dir.path().join("list"));
        std::fs::write(&list, "1\n2\n3\n").unwrap();
        let mut first = Checkpoint::open(&path, &list).await.unwrap();
        for line in 1..=3 {
            assert!(!first.is_settled(line));
            first.note_arrival(line);
        }
        first.settle(1, false);
        first.settle(3, true);
        assert!(first.due().is_some());
        first.write().await.unwrap();
        assert_eq!(first.due(), None);

        std::fs::write(&list, "1\n2\n3\n4\n").unwrap();
        let grown = Checkpoint::open(&path, &list).await.unwrap();
        let settled: Vec<_> = (1..=4).map(|line| grown.is_settled(line)).collect();
        assert_eq!(settled, [true, false, true, false]);
        assert_eq!(grown.counts(), (1, 1));

        std::fs::write(&list, "5\n6\n7\n8\n").unwrap();
        let other = Checkpoint::open(&path, &list).await.unwrap();
        assert!(!other.is_settled(1));
        assert_eq!(other.counts(), (0, 0));

        std::fs::write(&path, "{").unwrap();
        assert!(Checkpoint::open(&path, &list).await.is_err());
    }

    /// A list that was empty at first is recognized by its current content: other lists begin
    /// like it, too.
    #[tokio::test]
    async fn an_empty_list_is_not_the_beginning_of_every_list() {
        let dir = tempfile::tempdir().unwrap();
        let (path, list) = (dir.path().join("checkpoint"), dir.path().join("list"));
        for (text, lines) in [("", 0), ("1\n2\n3\n", 3), ("4\n5\n6\n", 3)] {
            std::fs::write(&list, text).unwrap();
            let mut run = Checkpoint::open(&path, &list).await.unwrap();
            assert_eq!(run.counts(), (0, 0), "{text:?}");
            for line in 1..=lines {
                assert!(!run.is_settled(line), "line {line} of {text:?}");
                run.note_arrival(line);
                run.settle(line, false);
            }
            run.write().await.unwrap();
        }
    }
}
