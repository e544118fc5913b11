//! The names of packs and parity files, the same in every engine that has names.

use outrigger_format::PackId;

/// The folder for parity files, beside those of packs.
pub(super) const PARITY_DIR: &str = "parity";

/// The folder of pack or parity file `id`, below that of all packs.
pub(super) fn folder(id: PackId) -> String {
    match id.parity() {
        None => format!("{:02x}", id.0 as u8),
        Some(_) => PARITY_DIR.to_owned(),
    }
}

/// Its name in that folder.
pub(super) fn file(id: PackId) -> String {
    format!("{id}.{}", if id.parity().is_some() { "parity" } else { "pack" })
}

/// The id of the pack of this file name; `None` for anything that is no pack's name, which is left
/// alone.
pub(super) fn parse(name: &str) -> Option<PackId> {
    parse_id(name, ".pack").filter(|id| id.0 != 0 && *id <= PackId::MAX)
}

/// The id of the parity file of this name; `None` for anything else.
pub(super) fn parse_parity(name: &str) -> Option<PackId> {
    parse_id(name, ".parity").filter(|id| id.parity().is_some())
}

fn parse_id(name: &str, suffix: &str) -> Option<PackId> {
    let digits = name.strip_suffix(suffix)?;
    let id = PackId(u64::from_str_radix(digits, 16).ok()?);
    (id.to_string() == digits).then_some(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packs_and_parity_files_have_names_of_their_own() {
        for id in [PackId(1), PackId::MAX] {
            assert_eq!((parse(&file(id)), parse_parity(&file(id))), (Some(id), None));
        }
        for id in [PackId::of_parity(0, 0), PackId::of_parity(u64::MAX, 255)] {
            assert_eq!((parse(&file(id)), parse_parity(&file(id))), (None, Some(id)));
            assert_eq!(folder(id), PARITY_DIR);
        }
        assert_eq!(parse_parity("0000000000000001.parity"), None);
        assert_eq!(parse_parity("8000000000000001.pack"), None);
    }
}
