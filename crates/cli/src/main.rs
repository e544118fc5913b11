//! quick
use std::path::PathBuf;
use std::sync::Arc;
use outrigger_store::local::{get, put};
use outrigger_store::tree::{StorePath, require};
use outrigger_store::write::Progress;
use outrigger_store::{Profile, Store, meta::At};
fn main() {
    let args: Vec<String> = std::env::args().collect();
    let dir = PathBuf::from(&args[1]);
    let t = std::time::Instant::now();
    let progress = Arc::new(Progress::default());
    match args[2].as_str() {
        "init" => { Store::init(&dir, &Profile::Default.config().unwrap()).unwrap(); }
        "put" => {
            let store = Store::open(&dir, false).unwrap();
            eprintln!("open {:?}", t.elapsed());
            let report = put::put(&store, vec![(put::Source::Path(args[3].clone().into()), StorePath::parse(args[4].as_bytes()).unwrap())], &put::PutOptions::default(), 2, &progress).unwrap();
            eprintln!("{report:?}");
        }
        "get" => {
            let store = Store::open(&dir, false).unwrap();
            let inode = require(&*store.meta, At::Now, &StorePath::parse(args[3].as_bytes()).unwrap()).unwrap();
            get::restore(&store, At::Now, &inode, &PathBuf::from(&args[4]), None, get::GetOptions { overwrite: false, special: true, threads: 2 }, &progress).unwrap();
            eprintln!("{:?}", progress.view());
        }
        _ => {}
    }
    for s in progress.skipped.lock().unwrap().iter().take(10) { eprintln!("skipped {s:?}"); }
    eprintln!("{:?}", t.elapsed());
}
