//! When such a key is destroyed, lost, rotten or planted.

use super::*;

#[test]
fn with_its_key_its_contents_are_gone_and_no_others() {
    for home in homes() {
        home.done(&["snapshot", "create", "before"]);
        is_refused(&home, 2, "would make unreadable for ever: 2 files", &["key", "destroy", "secret"]);
        reads(&home, "secret/files");
        home.done(&["key", "destroy", "secret", "--yes"]);
        let gone = "was destroyed";
        for args in [
            &["cat", "secret/files/large"][..],
            &["cat", "secret/files/below/small"],
            &["cat", "--at", "before", "secret/files/below/small"],
            &["put", "files", "--to", "secret/more"],
        ] {
            is_refused(&home, 1, gone, args);
        }
        assert_eq!(only(&home, &["cat", "secret/files/large"]).code, 1);
        assert!(!home.done(&["key", "list"]).text().contains("only"), "its slot went with it");
        reads(&home, "common");
        let json = home.done(&["check", "--read-data", "--json"]).json();
        assert!(json["packs_destroyed"].as_u64().unwrap() > 0 && json["damaged"] == 0, "{json}");
        home.done(&["gc"]);
        home.done(&["recompress"]);
        home.done(&["check"]);
        home.done(&["key", "destroy", "secret", "--yes"]);
        // Names stay until they are removed, and then the space is free.
        home.done(&["rm", "-r", "--no-snapshot", "secret"]);
        home.done(&["snapshot", "delete", "before"]);
        home.done(&["gc"]);
        assert!(stored(&home) < LARGE as u64 * 3 / 2, "{}", stored(&home));
        reads(&home, "common");
        let list = home.done(&["key", "list"]).text();
        assert!(list.contains("destroyed"), "{list}");
    }
}

/// The text with the key of `secret`.
fn domain_text(home: &Home) -> PathBuf {
    let text = std::fs::read_dir(packs(home).join("keys")).unwrap().map(|entry| entry.unwrap().path());
    let mut text = text.into_iter().filter(|path| path.to_string_lossy().contains("domain-"));
    text.find(|path| path.extension().is_none()).unwrap()
}

/// Somebody who can add texts beside the packs cannot make others believe that a domain is gone.
#[test]
fn a_planted_end_is_not_believed() {
    let home = home();
    let text = domain_text(&home);
    let gone = format!("{}.gone", text.display());
    let own = std::fs::read_to_string(&text).unwrap();
    for planted in ["# It is gone.\n".to_owned(), own.clone(), own.replace("epoch = 1", "epoch = 99")] {
        std::fs::write(&gone, &planted).unwrap();
        reads(&home, "secret/files");
        home.done(&["gc"]);
        home.done(&["check", "--read-data"]);
        reads(&home, "secret/files");
        assert_eq!(home.done(&["key", "list", "--json"]).json()["directories"][0]["state"], "open");
        // Nor is a copy's key removed for it.
        home.done(&["copy", home.0.store(), "copy"]);
        home.done(&["--store", "copy", "cat", "secret/files/large"]);
        // With the key lost as well, nothing is taken for garbage.
        std::fs::rename(&text, home.0.path("aside")).unwrap();
        assert_eq!(home.run(&["gc"]).code, 3, "{planted}");
        let said = home.run(&["copy", home.0.store(), "copy"]);
        assert!(said.code == 0 || said.code == 3, "{}", said.err);
        home.done(&["--store", "copy", "cat", "secret/files/large"]);
        std::fs::rename(home.0.path("aside"), &text).unwrap();
        reads(&home, "secret/files");
    }
}

/// A text that has rotten does not take the place of a copy's, and the copy's heals it.
#[test]
fn a_rotten_key_spoils_no_copy() {
    let home = home();
    home.done(&["copy", home.0.store(), "copy"]);
    let text = domain_text(&home);
    let good = std::fs::read_to_string(&text).unwrap();
    for rotten in
        [String::new(), good.replace("secret = \"", "secret = \"00"), good.replace("epoch = 1", "epoch = 0")]
    {
        std::fs::write(&text, rotten).unwrap();
        let said = home.run(&["cat", "secret/files/large"]);
        assert!(said.code == 3 && said.err.contains("domain-"), "{} {}", said.code, said.err);
        let _ = home.run(&["copy", home.0.store(), "copy"]);
        home.done(&["--store", "copy", "cat", "secret/files/large"]);
    }
    std::fs::copy(home.0.path("copy/keys").join(text.file_name().unwrap()), &text).unwrap();
    reads(&home, "secret/files");
}

/// What lies elsewhere is stored and read as ever.
#[test]
fn a_directory_that_is_gone_is_in_nobodys_way() {
    for home in homes() {
        home.done(&["mv", "common", "a"]);
        home.0.write("tree/a/large", noise(1, LARGE));
        home.0.write("tree/secret/new", "new");
        home.0.write("tree/z/new", "new");
        home.done(&["key", "destroy", "secret", "--yes"]);
        let said = home.run(&["put", "tree", "--to", "/", "--replace-source"]);
        assert!(said.code == 4 && said.err.contains("tree/secret"), "{} {}", said.code, said.err);
        assert_eq!(home.done(&["cat", "z/new"]).text(), "new");
        is_refused(&home, 1, "was destroyed", &["put", "tree/z", "--to", "secret/z"]);
        assert!(!home.done(&["ls", "secret"]).text().contains('z'), "nothing is made for it");
        is_refused(&home, 1, "was destroyed", &["key", "add", "--only", "secret", "--file", "late.key"]);
        assert!(!home.0.path("late.key").exists());
        let said = home.run(&["export", "/", "all.tar"]);
        assert!(said.code == 4 && said.err.contains("secret/files/large"), "{} {}", said.code, said.err);
        home.done(&["import", "all.tar", "--to", "unpacked"]);
        assert_eq!(home.done(&["cat", "unpacked/z/new"]).text(), "new");
        home.done(&["key", "rotate", "--drop-others"]);
        home.done(&["recompress", "--rekey"]);
        // Without it, the store can have other keys.
        let said = home.run(&["copy", home.0.store(), "plain", "--no-encryption"]);
        assert!(said.code == 2 && said.err.contains("keys of their own"), "{}", said.err);
        home.done(&["rm", "-r", "--no-snapshot", "secret"]);
        for snapshot in home.done(&["snapshot", "list", "--json"]).json()["snapshots"].as_array().unwrap() {
            home.done(&["snapshot", "delete", snapshot["name"].as_str().unwrap()]);
        }
        home.done(&["gc"]);
        home.done(&["gc"]);
        home.done(&["copy", home.0.store(), "plain", "--no-encryption"]);
        assert_eq!(home.done(&["--store", "plain", "cat", "z/new"]).text(), "new");
    }
}

#[test]
fn a_copy_follows_its_source() {
    for home in homes() {
        home.done(&["copy", home.0.store(), "copy"]);
        let copy = |args: &[&'static str]| [&["--store", "copy"], args].concat();
        assert_eq!(home.done(&copy(&["cat", "secret/files/below/small"])).text(), "a small file");
        home.done(&copy(&["check", "--read-data"]));
        let said = home.run(&["copy", home.0.store(), "other", "--no-encryption"]);
        assert!(said.code == 2 && said.err.contains("keys of their own"), "{}", said.err);
        // A text that the source has lost is no reason to remove the last one.
        let keys = packs(&home).join("keys");
        let text = std::fs::read_dir(&keys).unwrap().map(|entry| entry.unwrap().path());
        let text = text.into_iter().find(|path| path.to_string_lossy().contains("domain-")).unwrap();
        let aside = home.0.path("aside");
        std::fs::rename(&text, &aside).unwrap();
        let said = home.run(&["cat", "secret/files/large"]);
        assert!(
            said.code == 3 && said.err.contains("put this text back from a copy"),
            "{} {}",
            said.code,
            said.err
        );
        assert_eq!(home.run(&["gc"]).code, 3, "it takes nothing for garbage");
        let said = home.run(&["check", "--repair"]);
        assert_eq!(said.code, 3, "{}", said.text());
        home.done(&["copy", home.0.store(), "copy"]);
        assert_eq!(home.done(&copy(&["cat", "secret/files/below/small"])).text(), "a small file");
        std::fs::rename(&aside, &text).unwrap();
        reads(&home, "secret/files");
        // What was destroyed goes from the copy, too.
        home.done(&["key", "destroy", "secret", "--yes"]);
        home.done(&["put", "files", "--to", "more"]);
        home.done(&["copy", home.0.store(), "copy", "--verify"]);
        is_refused(&home, 1, "was destroyed", &copy(&["cat", "secret/files/large"]));
        assert_eq!(home.done(&copy(&["cat", "more/below/small"])).text(), "a small file");
        home.done(&["copy", home.0.store(), "second"]);
        home.done(&["--store", "second", "check", "--read-data"]);
    }
}

#[test]
fn parity_heals_what_it_cannot_read() {
    let home = home();
    home.done(&["policy", "set", "/", "parity=4+2"]);
    home.done(&["gc"]);
    let dir = home.0.path("store/packs");
    let lose = |skip: usize| {
        let mut packs: Vec<PathBuf> = Vec::new();
        let mut dirs = vec![dir.clone()];
        while let Some(dir) = dirs.pop() {
            for path in std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()) {
                match path.is_dir() {
                    true => dirs.push(path),
                    false if path.extension().is_some_and(|ext| ext == "pack") => packs.push(path),
                    false => {}
                }
            }
        }
        packs.sort();
        std::fs::remove_file(&packs[skip % packs.len()]).unwrap();
    };
    for skip in 0..4 {
        lose(skip);
        home.done(&["check", "--repair"]);
        reads(&home, "secret/files");
    }
    home.done(&["key", "destroy", "secret", "--yes"]);
    for skip in 0..4 {
        lose(skip);
        home.done(&["check", "--repair"]);
        reads(&home, "common");
    }
}
