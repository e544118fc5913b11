//! Changes of the names, through mounts and by commands.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use outrigger_workload::Rng;

use super::Soak;
use super::hosts::{End, Mount, Shell};
use super::model::{Blocks, Found, Recipe, Way, alike, is_tree, name};

fn some_blocks(rng: &mut Rng) -> Vec<u8> {
    (0..rng.below(5)).map(|_| rng.skewed(Blocks::COUNT) as u8).collect()
}

fn write(path: &Path, bytes: &[u8], sync: bool) -> io::Result<()> {
    let mut file = File::create(path)?;
    // In two calls, so that a kill can come in between.
    let (head, rest) = bytes.split_at(bytes.len() / 2);
    file.write_all(head)?;
    file.write_all(rest)?;
    if sync { file.sync_all() } else { Ok(()) }
}

/// Writes the content of a recipe, as a file or a tree.
fn lay(path: &Path, made: &Found) -> io::Result<()> {
    for (name, bytes) in made.as_ref().unwrap() {
        if name.is_empty() {
            write(path, bytes, false)?;
        } else {
            fs::create_dir_all(path)?;
            write(&path.join(name), bytes, false)?;
        }
    }
    Ok(())
}

impl Soak<'_> {
    /// Makes a change through a mount and records the outcome. `sure`: success means that the
    /// change is durable.
    fn through(
        &self,
        mount: &Mount<'_>,
        slots: &[usize],
        shell: &Shell<'_>,
        sure: bool,
        change: impl FnOnce() -> io::Result<()>,
    ) {
        let incarnation = mount.up();
        let done = change();
        if done.is_ok() && (sure || mount.is_still(incarnation)) {
            slots.iter().for_each(|slot| self.model.done(*slot));
            return;
        }
        // Unsynced data may be lost by a kill that comes right afterwards.
        mount.settled();
        assert!(
            !mount.is_still(incarnation),
            "{:?}: {done:?}",
            slots.iter().map(|slot| name(*slot)).collect::<Vec<_>>()
        );
        self.unknown(slots, shell);
    }

    /// Finds the outcome of a change that was cut short, and mends what it left in pieces.
    fn unknown(&self, slots: &[usize], shell: &Shell<'_>) {
        self.counts.cut_short();
        for slot in slots {
            let found = shell.look(&name(*slot));
            if self.model.settle(*slot, &found) {
                continue;
            }
            self.model.begin(*slot, None, Way::InPieces);
            if found.is_some() {
                shell.done(&["rm", "-r", &name(*slot)]);
            }
            self.model.done(*slot);
        }
    }

    /// One random change through a mount.
    pub fn write_in(&self, mount: &Mount<'_>, shell: &Shell<'_>, rng: &mut Rng, writer: usize) {
        let slot = rng.index(super::model::NAMES);
        let path = mount.root.join(name(slot));
        let other = rng.between(alike(slot).start as u64, alike(slot).end as u64 - 1) as usize;
        let _turns = self.model.turns([slot, other]);
        let there = self.model.current(slot);
        let (kind, sync) = (rng.below(8), rng.permille(500));
        let recipe = Recipe::new(slot, self.model.token(), some_blocks(rng));
        let made = self.model.blocks.made(Some(&recipe));
        match (kind, there) {
            // Renamed, possibly over another file.
            (0, Some(there)) if slot != other && (!is_tree(slot) || self.model.current(other).is_none()) => {
                self.model.begin(other, Some(there), Way::AtOnce);
                self.model.begin(slot, None, Way::AtOnce);
                let to = mount.root.join(name(other));
                self.through(mount, &[other, slot], shell, true, || fs::rename(&path, &to));
            }
            (1, Some(_)) => {
                self.model.begin(slot, None, if is_tree(slot) { Way::InPieces } else { Way::AtOnce });
                let remove =
                    || if is_tree(slot) { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
                self.through(mount, &[slot], shell, true, remove);
            }
            (2, Some(mut there)) if !is_tree(slot) && there.blocks.len() < 6 => {
                let block = rng.below(Blocks::COUNT) as u8;
                there.blocks.push(block);
                self.model.begin(slot, Some(there), Way::InPieces);
                self.through(mount, &[slot], shell, sync, || {
                    let mut file = OpenOptions::new().append(true).open(&path)?;
                    file.write_all(self.model.blocks.get(block))?;
                    if sync { file.sync_all() } else { Ok(()) }
                });
            }
            (3, Some(mut there)) if !is_tree(slot) => {
                there.token = recipe.token;
                self.model.begin(slot, Some(there), Way::InPieces);
                self.through(mount, &[slot], shell, sync, || {
                    let file = OpenOptions::new().write(true).open(&path)?;
                    file.write_all_at(Recipe::head(recipe.token).as_bytes(), 0)?;
                    if sync { file.sync_all() } else { Ok(()) }
                });
            }
            // Written under another name, and then renamed into place.
            (4 | 5, _) if !is_tree(slot) => {
                self.model.begin(slot, Some(recipe), Way::AtOnce);
                let beside = mount.root.join(format!("tmp/w{writer}"));
                self.through(mount, &[slot], shell, sync, || {
                    write(&beside, &made.as_ref().unwrap()[""], sync)?;
                    fs::rename(&beside, &path)
                });
            }
            (_, there) => {
                if is_tree(slot) && there.is_some() {
                    return;
                }
                self.model.begin(slot, Some(recipe), Way::InPieces);
                self.through(mount, &[slot], shell, sync && !is_tree(slot), || match is_tree(slot) {
                    true => lay(&path, &made),
                    false => write(&path, &made.as_ref().unwrap()[""], sync),
                });
            }
        }
    }

    /// Runs a command that changes names, and that may be killed.
    fn command(&self, shell: &Shell<'_>, slots: &[usize], rng: &mut Rng, args: &[&str]) {
        match shell.run_or_kill(args, rng) {
            End::Done(said) => {
                assert_eq!(said.code, 0, "{args:?}\n{}\n{}", said.text(), said.err);
                slots.iter().for_each(|slot| self.model.done(*slot));
            }
            End::Killed => self.unknown(slots, shell),
        }
    }

    /// One random change by a command.
    pub fn run_in(&self, shell: &Shell<'_>, rng: &mut Rng, put_before: &mut [Option<Recipe>]) {
        let slot = rng.index(super::model::NAMES);
        let other = rng.between(alike(slot).start as u64, alike(slot).end as u64 - 1) as usize;
        let _turns = self.model.turns([slot, other]);
        let (path, to) = (name(slot), name(other));
        let there = self.model.current(slot);
        let way = if is_tree(slot) { Way::InPieces } else { Way::AtOnce };
        match (rng.below(8), there) {
            (0, Some(there)) if slot != other && (!is_tree(slot) || self.model.current(other).is_none()) => {
                self.model.begin(other, Some(there), Way::AtOnce);
                self.model.begin(slot, None, Way::AtOnce);
                self.command(shell, &[other, slot], rng, &["mv", &path, &to]);
            }
            (1, Some(_)) => {
                self.model.begin(slot, None, way);
                self.command(shell, &[slot], rng, &["rm", "-r", &path]);
            }
            (2, Some(there)) if slot != other && self.model.current(other).is_none() => {
                self.model.doubles(&there);
                self.model.begin(other, Some(there), way);
                self.command(shell, &[other], rng, &["cp", "-r", &path, &to]);
            }
            (kind, _) => {
                let source = shell.place.path(format!("source{slot}"));
                // An earlier source may be put again, though the store's name has had other
                // contents since.
                if kind == 3
                    && let Some(before) = &put_before[slot]
                {
                    self.model.doubles(before);
                } else {
                    let recipe = Recipe::new(slot, self.model.token(), some_blocks(rng));
                    if is_tree(slot) {
                        let _ = fs::remove_dir_all(&source);
                    }
                    lay(&source, &self.model.blocks.made(Some(&recipe))).unwrap();
                    put_before[slot] = Some(recipe);
                }
                self.model.begin(slot, put_before[slot].clone(), way);
                self.command(
                    shell,
                    &[slot],
                    rng,
                    &["put", source.to_str().unwrap(), "--to", &path, "--replace-source"],
                );
            }
        }
    }
}
