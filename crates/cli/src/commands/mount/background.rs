//! A mount in the background.
//!
//! A second process of this program serves the mount. The first waits until the mount answers, and
//! passes on what the second says on standard error until then. It ends with the second's exit
//! code. Nothing is forked after threads have begun.

use std::ffi::OsString;
use std::io::{Read as _, Write as _};
use std::process::{Command, Stdio};

use super::{Plan, told};
use crate::commands::Context;
use crate::exit::{Exit, Failure, Outcome};
use crate::json::Object;
use crate::operation::Format;
use crate::output::{print_json, print_text};

const READY: &[u8] = b"ready\n";

/// Starts the process that serves the mount, and waits until it answers.
pub fn start(context: &Context, plan: &Plan) -> Outcome {
    let at = |error: &std::io::Error| Failure::io("cannot start the process that serves the mount", error);
    let mut command = Command::new(std::env::current_exe().map_err(|error| at(&error))?);
    let threads = context.threads.to_string();
    command.arg("--store").arg(&plan.store).args(["--threads", &threads, "mount", "--detach"]);
    if let Some(path) = outrigger_store::keys::secrets::named_key_file() {
        command.arg("--key-file").arg(path);
    }
    command.args(["--log-level", context.log.log_level.word()]);
    if context.log.log_format == Some(Format::Text) {
        command.args(["--log-format", "text"]);
    }
    command
        .args(["--offload", &plan.offload.word(), "--table-cache", plan.offload.table_cache(), "-o"])
        .arg(plan.flags.to_words())
        .arg("--")
        .arg(&plan.point);
    let mut child =
        command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().map_err(|error| at(&error))?;
    let mut said = Vec::new();
    let read = child.stdout.take().map(|mut pipe| pipe.read_to_end(&mut said));
    if matches!(read, Some(Ok(_))) && said == READY {
        if context.json {
            let point: OsString = plan.point.clone().into();
            let object = Object::new().with_name("mounted", point.as_encoded_bytes());
            print_json(object.with("read_only", plan.flags.read_only))?;
        } else if !context.quiet {
            print_text(&told::advice(plan))?;
        }
        return Ok(Exit::Done);
    }
    let status = child.wait().map_err(|error| at(&error))?;
    match status.code() {
        // The process has printed the reason itself.
        Some(2) => Err(Failure { exit: Exit::Usage, message: String::new() }),
        Some(3) => Err(Failure { exit: Exit::Damaged, message: String::new() }),
        Some(code) if code != 0 => Err(Failure { exit: Exit::Failed, message: String::new() }),
        _ => Err(Failure::failed(format!("the process that serves the mount ended early: {status}"))),
    }
}

/// Tells the waiting process that the mount answers, and leaves terminal and working directory.
pub fn let_go() {
    let mut out = std::io::stdout();
    let _ = out.write_all(READY).and_then(|()| out.flush());
    // Each of these can only fail if there is no terminal or directory to leave.
    let _ = rustix::process::setsid();
    let _ = std::env::set_current_dir("/");
    if let Ok(null) = std::fs::OpenOptions::new().read(true).write(true).open("/dev/null") {
        let _ = rustix::stdio::dup2_stdout(&null);
        let _ = rustix::stdio::dup2_stderr(&null);
    }
}
