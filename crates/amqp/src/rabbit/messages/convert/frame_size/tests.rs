//! Which headers a copy loses so that it fits a frame.

use super::*;

fn sized(sizes: &[(&str, usize)]) -> BasicProperties {
    let mut table = FieldTable::default();
    for (name, size) in sizes {
        table.insert(
            (*name).into(),
            AMQPValue::LongString(vec![b'x'; *size].into()),
        );
    }
    BasicProperties::default()
        .with_message_id("m1".into())
        .with_headers(table)
}

fn names_of(properties: &BasicProperties) -> Vec<String> {
    let headers = properties.headers().iter().flatten();
    headers.map(|(name, _)| name.to_string()).collect()
}

#[test]
fn what_fits_stays_as_it_is() {
    let properties = sized(&[("a", 4000)]);
    let written = gen_properties(&properties)(Vec::new().into())
        .unwrap()
        .into_inner()
        .0;
    assert!(shorten_to_frame(&properties, written.len() + OVERHEAD).is_none());
    assert!(shorten_to_frame(&properties, written.len() + OVERHEAD - 1).is_some());
}

#[test]
fn the_largest_of_the_publisher_stay_behind() {
    let ours = "x-sluiced-detail";
    let properties = sized(&[("a", 100), ("b", 5000), ("c", 3000), (ours, 4000)]);
    let short = shorten_to_frame(&properties, 8192).expect("it is too large");
    assert_eq!(names_of(&short), ["a", "c", ours, header::SHORTENED]);
    let table = short.headers().clone().unwrap_or_default();
    let said = table.inner().get(header::SHORTENED);
    assert_eq!(said, Some(&AMQPValue::LongString("b".into())));
    assert_eq!(short.message_id(), properties.message_id());
    assert!(shorten_to_frame(&short, 8192).is_none(), "it fits");
}

#[test]
fn any_size_fits_in_the_end() {
    for count in [1, 10, 100, 1000] {
        let owned: Vec<String> = (0..count).map(|n| format!("header-{n}")).collect();
        let sizes: Vec<(&str, usize)> = owned
            .iter()
            .map(|name| (&**name, 200_000 / count))
            .collect();
        let short = shorten_to_frame(&sized(&sizes), 131_072).expect("it is too large");
        assert!(shorten_to_frame(&short, 131_072).is_none(), "{count}");
    }
}
