//! What the host takes of the processors: slots that come up meanwhile are missed, and not used.

/// Since some moment.
pub struct Host {
    at_first: Option<Ticks>,
}

/// What the kernel counted since it started, of all processors together.
struct Ticks {
    all: u64,
    /// Taken by others of the same host (`st` of `vmstat`).
    stolen: u64,
}

impl Host {
    pub fn watch() -> Self {
        let at_first = Ticks::read();
        Self { at_first }
    }

    /// The share that was taken since then, in percent; `-` where the kernel does not say.
    pub fn took(&self) -> String {
        let (Some(first), Some(last)) = (&self.at_first, Ticks::read()) else {
            return "-".to_owned();
        };
        let all = last.all.saturating_sub(first.all).max(1);
        let stolen = last.stolen.saturating_sub(first.stolen);
        format!("{:.1}", stolen as f64 * 100.0 / all as f64)
    }
}

impl Ticks {
    /// The first line of `/proc/stat` (proc_stat(5)): user, nice, system, idle, iowait, irq, softirq, steal;
    /// guests are part of user and nice.
    fn read() -> Option<Self> {
        let text = std::fs::read_to_string("/proc/stat").ok()?;
        let numbers = text.lines().next()?.strip_prefix("cpu")?;
        let numbers = numbers.split_whitespace().take(8).map(str::parse);
        let ticks: Vec<u64> = numbers.collect::<Result<_, _>>().ok()?;
        let stolen = *ticks.get(7)?;
        let all = ticks.iter().sum();
        Some(Self { all, stolen })
    }
}
