//! The process that serves a mount: a tree that does not change, a store in a directory, or one
//! that other hosts write to, too. Each opens its volume, mounts it, and serves requests until the
//! unmount; then it stores what is staged. After a signal, the thread of `signals` unmounts; if
//! files stay open, it stores what is staged itself and ends the process.

use std::io;
use std::net::TcpListener;
use std::sync::Arc;

use outrigger_active::maker::Maker;
use outrigger_active::rules::Readers;
use outrigger_fuse::beside;
use outrigger_fuse::control::{Remote, Server};
use outrigger_fuse::fs::{Counted, FileSystem};
use outrigger_fuse::kernel::{self, MountOptions};
use outrigger_fuse::live::{LiveOptions, LiveVolume, Stale};
use outrigger_fuse::measures::{self, Watched};
use outrigger_fuse::report::Reports;
use outrigger_fuse::shared::{SharedOptions, SharedVolume};
use outrigger_fuse::view::{ReadOptions, ReadVolume};
use outrigger_store::meta::Role;
use outrigger_store::ops::mounts::register;
use outrigger_store::{Store, shared};

use super::told::{self, Told};
use super::{Plan, arenas, background, signals};
use crate::args::MountFlags;
use crate::commands::{Context, offload};
use crate::exit::{Exit, Failure, Outcome, plain};
use crate::exporter::{Exporter, Trace};
use crate::interrupt;
use crate::log::Log;
use crate::operation::{self, LogFlags};
use crate::output::{complain, print_text};

/// Threads that serve requests, at least: one can decode while another talks to the kernel.
const THREADS_MIN: usize = 2;
const THREADS_MAX: usize = 8;
const ARENAS_MIN: usize = 2;

/// Serves the mount in this process until it is unmounted.
pub(super) fn serve(context: &Context, plan: &Plan, detach: bool) -> Outcome {
    let flags = LogFlags { log: plan.flags.log.clone(), ..context.log.clone() };
    operation::begin(&flags, "mount", Some(&plan.store))?;
    let log = Arc::new(match &plan.flags.log {
        Some(_) => Log::Kept,
        None if detach => Log::Machine,
        None => Log::Terminal,
    });
    let teller = Arc::clone(&log);
    let reports = Reports::new(move |report| teller.tell(report));
    let threads = context.threads.clamp(THREADS_MIN, THREADS_MAX);
    arenas::limit(context.threads.max(ARENAS_MIN));
    if !plan.flags.read_only && shared::url(&plan.store).is_some() {
        return serve_shared(context, plan, detach, threads, (reports, &log));
    }
    if !plan.flags.read_only {
        return serve_changes(context, plan, detach, threads, (reports, &log));
    }
    let store = Arc::new(context.open()?);
    let view = context.view(&store, Role::Mount, plan.flags.at.as_deref())?;
    let tame_snapshots = plan.flags.honours_rights();
    let options = ReadOptions { snapshots: plan.flags.at.is_none(), tame_snapshots, ahead_threads: threads };
    let exporter = listen(plan)?;
    let volume = ReadVolume::new(Arc::clone(&store), view, options, reports)?;
    let volume = Arc::new(Counted::new(Arc::new(volume)));
    let options = mount_options(plan, threads);
    let mounted =
        kernel::mount(Arc::clone(&volume), &plan.point, &options).map_err(|error| refused(plan, &error))?;
    let (_exporter, trace) = export(exporter, &volume)?;
    let told = Arc::new(Told::of(&store, plan));
    let at_end = Arc::clone(&told);
    signals::unmount_on_signal(&plan.point, move || {
        at_end.end();
        interrupt::close_sessions(&store);
        trace.iter().for_each(Trace::remove);
    });
    let served = mounted.serve(ready(context, plan, detach));
    told.end();
    served.map_err(|error| Failure::io("the mount has ended", &error))?;
    Ok(Exit::Done)
}

/// The callback for the moment when the mount answers.
fn ready(context: &Context, plan: &Plan, detach: bool) -> impl FnOnce() + Send + 'static {
    let (quiet, point) = (context.quiet, plan.point.clone());
    move || {
        if detach {
            background::let_go();
        } else if !quiet {
            let _ = print_text(&format!("mounted on {}; Ctrl-C unmounts\n", point.display()));
        }
    }
}

/// The store, with its devices.
fn open_to_write(context: &Context, plan: &Plan) -> Result<Arc<Store>, Failure> {
    let store = Arc::new(Store::open(&plan.store, false)?);
    store.require_writable()?;
    offload::use_devices(context, &store, &plan.offload)?;
    Ok(store)
}

/// Serves a mount that can be written to, until it is unmounted and all is stored.
fn serve_changes(
    context: &Context,
    plan: &Plan,
    detach: bool,
    threads: usize,
    (reports, log): (Reports, &Log),
) -> Outcome {
    let store = open_to_write(context, plan)?;
    let mut options = LiveOptions::new(context.threads);
    options.staging_bytes = plan.flags.staging_bytes.unwrap_or(options.staging_bytes);
    options.batch_bytes = (options.staging_bytes / 2).min(options.batch_bytes);
    options.order = plan.flags.staging_order.unwrap_or_default();
    options.overrides = plan.flags.overrides;
    options.tame_snapshots = plan.flags.honours_rights();
    let exporter = listen(plan)?;
    let volume = Arc::new(LiveVolume::open(Arc::clone(&store), options, reports)?);
    let recovered = volume.recovered();
    if recovered.records > 0 {
        complain(&format!("an earlier mount was not unmounted cleanly: {}", beside::describe(recovered)));
    }
    volume.set_tail_rules(Arc::new(Maker::new(&store)))?;
    volume.set_reads(Arc::new(Readers::new(&store)))?;
    let mount = mount_options(plan, threads);
    let counted = Arc::new(Counted::new(Arc::clone(&volume)));
    let mounted =
        kernel::mount(Arc::clone(&counted), &plan.point, &mount).map_err(|error| refused(plan, &error))?;
    let forget = mounted.forgetter();
    let (_exporter, trace) = export(exporter, &counted)?;
    let server =
        Server::start(&counted, store.home().path(), Arc::new(move |stale: &Stale| forget.forget(stale)))?;
    let told = Arc::new(Told::of(&store, plan));
    let told_at_end = Arc::clone(&told);
    let (ending, at_end) = (Arc::clone(&volume), Arc::clone(&store));
    signals::unmount_on_signal(&plan.point, move || {
        // Staged data is safe in the log; storing it now saves the next mount the work.
        let _ = ending.destage_all();
        told_at_end.end();
        interrupt::close_sessions(&at_end);
        trace.iter().for_each(Trace::remove);
    });
    let served = mounted.serve(ready(context, plan, detach));
    told.end();
    let stored = volume.close();
    // Clients that wait for the end of the mount see it now.
    drop(server);
    context.settle(&store);
    offload::remember(&store);
    let stored = stored.map_err(|error| {
        volume.lost().unwrap_or_else(|| {
            format!(
                "staged data could not be stored and is kept: {error}; mount again, or run any command on the store"
            )
        })
    });
    ended(detach.then_some(log), stored, served)
}

/// The outcome of a mount that was unmounted. Without a terminal, `log` gets a failure, too.
fn ended(log: Option<&Log>, stored: Result<(), String>, served: io::Result<()>) -> Outcome {
    if let Err(text) = stored {
        if let Some(log) = log {
            log.tell_failure(&text);
        }
        return Err(Failure::failed(text));
    }
    served.map_err(|error| Failure::io("the mount has ended", &error))?;
    Ok(Exit::Done)
}

/// Serves a mount of a store that other hosts write to, too, until it is unmounted.
fn serve_shared(
    context: &Context,
    plan: &Plan,
    detach: bool,
    threads: usize,
    (reports, log): (Reports, &Log),
) -> Outcome {
    let store = open_to_write(context, plan)?;
    // Threads that wait for agents on other hosts take no processor.
    let threads = if plan.flags.serve_followers.is_some() { THREADS_MAX } else { threads };
    let mut options = SharedOptions::new(context.threads);
    options.request_threads = threads;
    options.order = plan.flags.staging_order.unwrap_or_default();
    options.staging_bytes = plan.flags.staging_bytes.unwrap_or(options.staging_bytes);
    options.overrides = plan.flags.overrides;
    options.tame_snapshots = plan.flags.honours_rights();
    options.names_for = plan.flags.names_for.unwrap_or_default();
    options.closes_within = plan.flags.closes_within.unwrap_or_default();
    let exporter = listen(plan)?;
    let listener = plan.flags.serve_followers.map(|address| {
        let what = || format!("cannot serve readers at {address}");
        TcpListener::bind(address).map_err(|error| Failure::io(what(), &error))
    });
    let listener = listener.transpose()?;
    let volume = Arc::new(SharedVolume::open(Arc::clone(&store), options, reports)?);
    volume.set_tail_rules(Arc::new(Maker::new(&store)))?;
    volume.set_reads(Arc::new(Readers::new(&store)))?;
    let mount = mount_options(plan, threads);
    let counted = Arc::new(Counted::new(Arc::clone(&volume)));
    let mounted =
        kernel::mount(Arc::clone(&counted), &plan.point, &mount).map_err(|error| refused(plan, &error))?;
    let forget = mounted.forgetter();
    volume.forget_by(move |inode| forget.forget(&Stale { inodes: vec![inode], ..Stale::default() }));
    let (_exporter, trace) = export(exporter, &counted)?;
    // Commands do not make this mount forget anything: it asks the database each time.
    let server = Server::start(&counted, volume.dir(), Arc::new(|_: &Stale| {}))?;
    let remote = listener.map(|listener| Remote::start(&store, &volume, listener)).transpose()?;
    let told = Arc::new(Told::of(&store, plan));
    // Others may have removed it with the session.
    let (of, record) = (Arc::clone(&store), told::record(plan));
    volume.when_renewed(move |_| register(&of, &record));
    let told_at_end = Arc::clone(&told);
    let (ending, at_end) = (Arc::clone(&volume), Arc::clone(&store));
    signals::unmount_on_signal(&plan.point, move || {
        // Stores what was written so far to files that are still open.
        let _ = ending.store_all();
        told_at_end.end();
        interrupt::close_sessions(&at_end);
        trace.iter().for_each(Trace::remove);
    });
    let served = mounted.serve(ready(context, plan, detach));
    told.end();
    let stored = volume.close(|| drop((server, remote)));
    context.settle(&store);
    offload::remember(&store);
    // Other hosts would wait until the lease ends, and the signal thread keeps the session open.
    interrupt::close_sessions(&store);
    let stored = stored.map_err(|error| format!("recent writes could not be stored and are lost: {error}"));
    ended(detach.then_some(log), stored, served)
}

/// Binds the metrics address before mounting, so that an error still reaches the terminal.
fn listen(plan: &Plan) -> Result<Option<Exporter>, Failure> {
    let bind = |address| {
        Exporter::bind(address)
            .map_err(|error| Failure::io(format!("cannot serve metrics at {address}"), &error))
    };
    plan.flags.metrics.as_ref().map(bind).transpose()
}

/// Starts the exporter. The trace removes its socket if the process ends before.
fn export<F: FileSystem + Watched>(
    mut exporter: Option<Exporter>,
    counted: &Arc<Counted<F>>,
) -> Result<(Option<Exporter>, Option<Trace>), Failure> {
    if let Some(exporter) = &mut exporter {
        let counted = Arc::downgrade(counted);
        let render = move || counted.upgrade().map(|counted| measures::exposition(&counted.status()));
        exporter
            .start(measures::CONTENT_TYPE, Arc::new(render))
            .map_err(|error| Failure::io("cannot serve metrics", &error))?;
    }
    let trace = exporter.as_ref().and_then(Exporter::trace);
    Ok((exporter, trace))
}

fn mount_options(plan: &Plan, threads: usize) -> MountOptions {
    let MountFlags { allow_other, check_permissions, suid, dev, exec, .. } = plan.flags;
    // A comma would end the name where options are text.
    let source = plan.store.to_string_lossy().replace(',', "_");
    MountOptions {
        source,
        read_only: plan.flags.read_only,
        allow_other,
        check_permissions,
        suid,
        dev,
        exec,
        threads,
    }
}

fn refused(plan: &Plan, error: &std::io::Error) -> Failure {
    let why = plain(error);
    let advice = match error.kind() {
        std::io::ErrorKind::NotFound => {
            "; FUSE is missing: run `modprobe fuse`, and install the package fuse3"
        }
        std::io::ErrorKind::PermissionDenied if plan.flags.allow_other => {
            "; as root, add `user_allow_other` to /etc/fuse.conf"
        }
        _ => "",
    };
    Failure::failed(format!("cannot mount on {}: {}{advice}", plan.point.display(), why.trim()))
}
