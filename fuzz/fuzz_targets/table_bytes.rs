//! A saved fingerprint table. The reader returns the saved table or refuses the bytes.
#![no_main]

use outrigger_offload::table::Table;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    if let Ok(table) = Table::load(bytes, 1000) {
        let mut again = Vec::new();
        table.save(&mut again);
        let back = Table::load(&again, 1000).expect("what was saved");
        assert_eq!(back.len(), table.len());
        table.iter().for_each(|(fingerprint, place)| assert_eq!(back.get(&fingerprint), Some(place)));
    }
});
