//! Codecs on the command line: init, policies, stats, recompress, bench.

use crate::run::Place;

/// Frames of data by how they are stored.
fn encodings(place: &Place) -> Vec<String> {
    let stats = place.done(&["stats", "--json"]).json();
    let frames = stats["frames"].as_array().unwrap().iter();
    let data = frames.filter(|frame| frame["kind"] == "data");
    data.map(|frame| frame["encoding"].as_str().unwrap().to_string()).collect()
}

#[test]
fn old_data_follows_its_policy_when_it_is_recompressed() {
    let place = Place::new();
    let text: String = (0..40_000).map(|n| format!("{n} and {}\n", n * 7 % 1000)).collect();
    place.write("src/text", text.as_bytes());
    place.done(&["put", "src", "--to", "src"]);
    let before = encodings(&place);
    assert!(before.iter().all(|one| one.starts_with("zstd:1")), "{before:?}");
    place.done(&["policy", "set", "src", "codec=gzip:9", "filters=off", "budget=80"]);
    let policy = place.done(&["policy", "get", "src", "--json"]).json();
    assert_eq!(policy["policies"]["budget"]["value"], "80");
    assert_eq!(encodings(&place), before, "what is stored stays as it is");
    place.done(&["recompress", "--dry-run"]);
    assert_eq!(encodings(&place), before);
    let report = place.done(&["recompress", "--json"]).json();
    assert!(report["frames"].as_u64().unwrap() > 0, "{report}");
    assert_eq!(encodings(&place), ["gzip:9"]);
    assert_eq!(place.done(&["cat", "src/text"]).out, text.as_bytes());
    let again = place.done(&["recompress", "--json"]).json();
    assert_eq!(again["frames"].as_u64(), Some(0), "{again}");
    place.done(&["recompress", "--codec", "auto", "--limit", "1G"]);
    assert_eq!(place.done(&["cat", "src/text"]).out, text.as_bytes());
    let after = encodings(&place);
    assert!(after.iter().all(|one| one.starts_with("zstd:2")), "{after:?}");
}

#[test]
fn codecs_are_compared_and_what_they_give_back_is_checked() {
    let place = Place::new();
    let args = ["bench", "compress", "--size", "600K", "--blocks", "4K,64K", "--json"];
    let report = place.done(&args).json();
    let rows = report["rows"].as_array().unwrap();
    assert_eq!((rows.len(), report["bytes"].as_u64()), (12, Some(600 << 10)));
    for row in rows {
        let ratio = row["ratio"].as_f64().unwrap();
        let is_plain = row["codec"] == "none";
        assert!(if is_plain { ratio == 1.0 } else { ratio >= 1.0 }, "{row}");
    }
    place.write("empty", "");
    assert_eq!(place.run(&["bench", "compress", "empty"]).code, 2);
}
