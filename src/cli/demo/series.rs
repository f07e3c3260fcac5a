//! The text that a scrape gets, line by line: the demo reads that of its replicas.

/// One line of the text that a scrape gets (the exposition format of Prometheus): a counter or a gauge, as
/// `name{label="value"} number`.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct SeriesLine<'a> {
    pub(super) name: &'a str,
    labels: &'a str,
    pub(super) value: f64,
}

impl<'a> SeriesLine<'a> {
    /// The value of a label.
    pub(super) fn label(&self, name: &str) -> Option<&'a str> {
        label(self.labels, name)
    }
}

/// The value of a label. Labels here come from names and fixed lists, so none is escaped.
fn label<'a>(labels: &'a str, name: &str) -> Option<&'a str> {
    labels.split(',').find_map(|label| {
        let (label_name, value) = label.split_once('=')?;
        (label_name == name).then(|| value.trim_matches('"'))
    })
}

/// All lines that can be read.
pub(super) fn series(text: &str) -> impl Iterator<Item = SeriesLine<'_>> {
    text.lines().filter_map(|line| {
        let (series, value) = line.rsplit_once(' ')?;
        let value = value.parse().ok()?;
        let (name, labels) = match series.split_once('{') {
            Some((name, labels)) => (name, labels.strip_suffix('}')?),
            None => (series, ""),
        };
        (!name.starts_with('#')).then_some(SeriesLine {
            name,
            labels,
            value,
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_and_others_passed_over() {
        let text = "# TYPE a counter\na{route=\"sms.de\",outcome=\"2xx\"} 3\nb 0.25\n\nnonsense\n# HELP c is 7\n";
        let all: Vec<_> = series(text).collect();
        assert_eq!(all.len(), 2);
        assert_eq!((all[0].name, all[0].value), ("a", 3.0));
        assert_eq!(all[0].label("outcome"), Some("2xx"));
        assert_eq!(all[0].label("route"), Some("sms.de"));
        assert_eq!(all[0].label("limit"), None);
        assert_eq!((all[1].name, all[1].value), ("b", 0.25));
    }
}
