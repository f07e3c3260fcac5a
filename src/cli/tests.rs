use super::*;

struct Failing(ErrorKind);

impl Write for Failing {
    fn write(&mut self, _: &[u8]) -> io::Result<usize> {
        Err(self.0.into())
    }

    fn flush(&mut self) -> io::Result<()> {
        Err(self.0.into())
    }
}

#[test]
fn a_reader_that_has_seen_enough_is_no_failure() {
    let mut closed = Output(Failing(ErrorKind::BrokenPipe));
    closed.write_all(b"text").expect("dropped");
    closed.flush().expect("dropped");
    let mut full = Output(Failing(ErrorKind::StorageFull));
    assert!(full.write_all(b"text").is_err());
    assert!(full.flush().is_err());
}
