//! The calls of a metadata engine, for engines that stand in front of another one.

/// Passes the signatures of a trait of [`Meta`](crate::meta::Meta) to the named macro, which makes
/// methods of them: `meta_calls!(Tree, pass_on)` in an `impl Tree`. Left out are those that the
/// wrappers here make themselves (`renew`, `commit`, `has_happened`), and those with a default. The
/// caller has the types of the signatures in scope.
#[macro_export]
macro_rules! meta_calls {
    (Sessions, $pass_on:ident) => {
        $pass_on! {
            fn open_session(kind: SessionKind, owner: &SessionOwner, lease_secs: u32) -> (SessionId, Generation);
            fn acknowledge(session: SessionId, relied: &[PackId]) -> Generation;
            fn generation() -> u64;
            fn close_session(session: SessionId) -> ();
            fn fence(session: SessionId) -> ();
            fn sessions() -> Vec<SessionRow>;
        }
    };
    (Packs, $pass_on:ident) => {
        $pass_on! {
            fn announce_packs(session: SessionId, kind: PackKind, count: u32, mark: u64) -> Vec<PackId>;
            fn withdraw_packs(session: SessionId, packs: &[PackId]) -> ();
            fn packs_sealed(session: SessionId, packs: &[PackRow]) -> ();
            fn packs() -> Vec<PackRow>;
            fn packs_after(after: PackId, limit: usize) -> Vec<PackRow>;
            fn pack_sums() -> Vec<PackSum>;
            fn sweep_packs(time: u64) -> u64;
            fn forget_packs(packs: &[PackId]) -> ();
            fn adopt_packs(packs: &[PackRow]) -> ();
        }
    };
    (Tree, $pass_on:ident) => {
        $pass_on! {
            fn inode(at: At, number: u64) -> Option<Inode>;
            fn lookup(at: At, parent: u64, name: &[u8]) -> Option<Inode>;
            fn parent_of(directory: u64) -> Option<u64>;
            fn read_dir(at: At, parent: u64, after: Option<&[u8]>, limit: usize) -> Vec<DirEntry>;
            fn history(directory: u64) -> Vec<Era>;
            fn reserve_inodes(count: u64) -> Range<u64>;
            fn next_sequence() -> u64;
            fn totals() -> TreeTotals;
        }
    };
    (Snapshots, $pass_on:ident) => {
        $pass_on! {
            fn versions(inode: u64) -> Vec<VersionRow>;
            fn create_snapshot(name: &str, time: u64, tags: &[String]) -> SnapshotRow;
            fn set_snapshot_tags(name: &str, tags: &[String]) -> ();
            fn snapshots() -> Vec<SnapshotRow>;
            fn delete_snapshot(name: &str) -> ();
            fn pin(session: SessionId, target: &PinTarget) -> (u64, Option<Root>);
            fn purge_history() -> u64;
            fn restore_versions(inode: u64, versions: &[VersionRow]) -> ();
        }
    };
    (Holds, $pass_on:ident) => {
        $pass_on! {
            fn hold(holder: &str, roots: &[Root]) -> ();
            fn release(holder: &str, roots: Option<&[Root]>) -> ();
            fn holders() -> Vec<String>;
            fn held(holder: &str) -> Vec<Root>;
        }
    };
    (Policies, $pass_on:ident) => {
        $pass_on! {
            fn set_policy(inode: u64, key: &str, value: Option<&str>) -> ();
            fn policies(inode: u64) -> BTreeMap<String, String>;
            fn all_policies() -> BTreeMap<u64, BTreeMap<String, String>>;
        }
    };
    (Reclaim, $pass_on:ident) => {
        $pass_on! {
            fn take_collector(session: SessionId) -> ();
            fn release_collector(session: SessionId) -> ();
            fn visit_roots(visit: &mut dyn FnMut(Root) -> Result<()>) -> Vec<PackRow>;
            fn mark_candidates(session: SessionId, packs: &[PackId]) -> u64;
            fn all_acknowledged(generation: u64) -> bool;
            fn delete_packs(session: SessionId, copies: &[PackId], victims: &[PackId], time: u64) -> ();
            fn unmark(session: SessionId, packs: &[PackId]) -> ();
        }
    };
    (Meta, $pass_on:ident) => {
        $pass_on! {
            fn now() -> u64;
            fn counters() -> Counters;
            fn raise_counters(next_pack: u64, next_inode: u64, next_sequence: u64) -> ();
            fn check() -> Vec<String>;
            fn tidy() -> ();
        }
    };
}
