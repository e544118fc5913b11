//! Decides which jobs a process runs, and as which user of this host.
//!
//! A job's row names its submitter, and whoever may write to the metadata chooses that name. So an
//! agent believes what was authenticated by somebody else:
//!
//! | metadata in | who has made a row | who is its submitter |
//! | --- | --- | --- |
//! | PostgreSQL | the role that the server has let in; the row keeps it (`schema_triggers.sql`) | the local user that the role is mapped to ([`Roles`]). The agent's own role may name anybody, as it could do all that the agent does |
//! | a directory | whoever may write there: the directory's owner | the owner; in a directory of root's whom the row names |
//!
//! A rule's job has two roles. An agent or a mount makes the job by its own role, and names the
//! rule's role in [`Spec::on_behalf`]. The maker's role must be the agent's own, or be mapped to
//! `*`; then the rule's role counts.
//!
//! With [`Trust::signed_by`] none of that counts: the submitter is who has signed the job
//! (`signing.rs`).
//!
//! The agent then runs the programs as the submitter, or all of them as one user
//! ([`Trust::run_as`]).

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use outrigger_store::meta::jobs::{JobInput, JobRow};
use outrigger_store::meta::records::MadeBy;
use outrigger_store::{Context as _, Error, ErrorKind, Result, Store};

use crate::identity::Submitter;
use crate::job::Mode;
use crate::job::spec::Spec;
use crate::signing;

/// The user of this host that a role of the database stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Account {
    /// This user, whomever its rows name.
    User(u32),
    /// Whomever its rows name.
    Anybody,
}

/// Which roles of the database are which users of this host.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Roles(BTreeMap<String, Account>);

impl Roles {
    /// Reads lines `ROLE USER`; `*` as the user is for roles that speak for others: mounts and
    /// agents. A comment begins with `#`.
    ///
    /// # Errors
    /// `Invalid`, naming the line.
    pub fn parse(text: &str) -> Result<Self> {
        let mut roles = BTreeMap::new();
        for (number, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or_default().trim();
            if line.is_empty() {
                continue;
            }
            let wrong = |why: String| Error::new(ErrorKind::Invalid, format!("line {}: {why}", number + 1));
            let (role, user) = line.rsplit_once(char::is_whitespace).ok_or_else(|| {
                wrong(format!("`{line}`: use ROLE USER, or ROLE * for one that speaks for others"))
            })?;
            let account = match user {
                "*" => Account::Anybody,
                user => Account::User(Submitter::named(user).map_err(|error| wrong(error.to_string()))?.uid),
            };
            if roles.insert(role.trim_end().to_string(), account).is_some() {
                return Err(wrong(format!("the role `{}` is there twice", role.trim_end())));
            }
        }
        Ok(Self(roles))
    }

    fn account(&self, role: &str, own: &str) -> Result<Account> {
        match self.0.get(role) {
            Some(account) => Ok(*account),
            None if role == own => Ok(Account::Anybody),
            None => {
                let why = format!(
                    "the database's role `{role}` has made it, which is no user here: start the agent with --map FILE, where FILE has a line `{role} USER`"
                );
                Err(Error::new(ErrorKind::Denied, why))
            }
        }
    }

    /// The submitter of a row that names `named`.
    fn submitter(&self, by: &MadeBy, spec: &Spec, named: Option<u32>) -> Result<Option<u32>> {
        let Some(made) = &by.role else {
            let why = "the database does not say which role has made it, because it came with a copy; make it again";
            return Err(Error::new(ErrorKind::Denied, why));
        };
        let mut account = self.account(made, &by.asks)?;
        if let Some(behalf) = &spec.on_behalf {
            if account != Account::Anybody {
                let why = format!(
                    "the database's role `{made}` has made it for a rule of the role `{behalf}`: that takes a line `{made} *` in the file that --map names"
                );
                return Err(Error::new(ErrorKind::Denied, why));
            }
            account = self.account(behalf, &by.asks)?;
        }
        Ok(match account {
            Account::User(uid) => Some(uid),
            Account::Anybody => named,
        })
    }
}

/// Says which rows a process believes, and how it runs their programs.
#[derive(Clone, Debug)]
pub struct Trust {
    /// This process has made the job: what its row names is believed.
    pub is_own: bool,
    /// Root runs programs of root's that are not kept in.
    pub allow_root: bool,
    /// Root runs all programs as this user.
    pub run_as: Option<Submitter>,
    /// Users whose jobs are run; `None`: everybody's.
    pub users: Option<BTreeSet<u32>>,
    /// Which roles are which users.
    pub roles: Roles,
    /// No program is kept in less strictly.
    pub sandbox: Mode,
    /// Nothing is believed but the signatures of these signers, in a file that ssh-keygen(1)
    /// describes.
    pub signed_by: Option<PathBuf>,
}

/// For jobs of others, where nothing was said on the command line.
impl Default for Trust {
    fn default() -> Self {
        Self {
            is_own: false,
            allow_root: false,
            run_as: None,
            users: None,
            roles: Roles::default(),
            sandbox: Mode::Off,
            signed_by: None,
        }
    }
}

/// A job that is run here.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Admitted {
    /// The user whose rights in the store count, and who gets its outputs.
    pub submitter: Option<Submitter>,
    /// The user that its programs run as, if root has a choice.
    pub runs_as: Option<Submitter>,
}

impl Trust {
    /// For a job that this process has made itself.
    pub fn own() -> Self {
        Self { is_own: true, allow_root: true, ..Self::default() }
    }

    /// Looks whether this process runs a job with these inputs, which are those that it is then to
    /// be run with, and as whom. Has `spec` kept in at least as strictly as was said.
    ///
    /// # Errors
    /// `Denied`, saying who could run it; when the store's directory cannot be looked at.
    pub fn admit(
        &self,
        store: &Store,
        row: &JobRow,
        inputs: &[JobInput],
        spec: &mut Spec,
    ) -> Result<Admitted> {
        spec.sandbox = spec.sandbox.max(self.sandbox);
        let own = rustix::process::geteuid().as_raw();
        let named = spec.submitter.as_ref().map(|submitter| submitter.uid);
        let uid = match (&row.by, &self.signed_by) {
            _ if self.is_own => named,
            (_, Some(signers)) => Some(require_signature(store, signers, inputs, spec, named)?),
            (Some(by), None) => self.roles.submitter(by, spec, named)?,
            (None, None) => named,
        };
        if let Some(users) = &self.users
            && !users.contains(&uid.unwrap_or(own))
        {
            let why = format!("it is of uid {}, who is not among --users", uid.unwrap_or(own));
            return Err(Error::new(ErrorKind::Denied, why));
        }
        if let Some(uid) = uid.filter(|uid| own != 0 && *uid != own) {
            let why = format!(
                "it was submitted by uid {uid}, and this process is of uid {own}: a process of that user runs it, or one of root (`outrigger node`)"
            );
            return Err(Error::new(ErrorKind::Denied, why));
        }
        if row.by.is_none() && self.signed_by.is_none() && !self.is_own {
            require_owner(store, uid)?;
        }
        if own != 0 {
            return Ok(Admitted { submitter: uid.map(|_| Submitter::here()), runs_as: None });
        }
        let submitter = match (uid, &self.run_as) {
            (None, _) => None,
            (Some(0), _) => Some(Submitter::root()),
            (Some(uid), None) => Some(Submitter::known_here(uid)?),
            // He runs nothing here, so his groups need not be known; then he is in none.
            (Some(uid), Some(_)) => {
                Some(Submitter::known_here(uid).unwrap_or_else(|_| Submitter::alone(uid)))
            }
        };
        let runs_as = self.run_as.clone().or_else(|| submitter.clone().filter(|who| !who.is_root()));
        if runs_as.is_none() && spec.sandbox == Mode::Off && !self.allow_root {
            return Err(refused_as_root());
        }
        Ok(Admitted { submitter, runs_as })
    }
}

/// Refuses a job that its submitter has not signed.
fn require_signature(
    store: &Store,
    signers: &Path,
    inputs: &[JobInput],
    spec: &Spec,
    named: Option<u32>,
) -> Result<u32> {
    let (Some(signed), Some(uid)) = (&spec.signed, named) else {
        let why = "it is not signed, and this agent runs signed jobs only: submit it with `run --sign KEY`";
        return Err(Error::new(ErrorKind::Denied, why));
    };
    let user = Submitter::name_of(uid)?;
    signing::verify(store, signers, &user, signed, inputs)?;
    Ok(uid)
}

/// Refuses a row that somebody else than the owner of the store's directory could have been the
/// submitter of. Of root's directory, which nobody else writes to, any row is believed.
fn require_owner(store: &Store, uid: Option<u32>) -> Result<()> {
    const BY_ALL: u32 = 0o002;
    let dir = store.dir();
    let about =
        std::fs::metadata(store.home().path()).context(|| format!("cannot look at {}", dir.display()))?;
    if about.mode() & BY_ALL != 0 {
        let why = format!("everybody may write to {}, so anybody could have made it", dir.display());
        return Err(Error::new(ErrorKind::Denied, why));
    }
    match uid.unwrap_or(0) {
        uid if about.uid() != 0 && uid != about.uid() => {
            let why = format!(
                "it names uid {uid}, and the directory {} is of uid {}: who owns the directory is who submits",
                dir.display(),
                about.uid()
            );
            Err(Error::new(ErrorKind::Denied, why))
        }
        _ => Ok(()),
    }
}

/// Refuses a job that would run as root with nothing that keeps it in: whoever may write to the
/// database could have put it there.
pub(crate) fn refused_as_root() -> Error {
    let why = "it would run as root and is not kept in: submit it as another user or with --sandbox strict, or have it run with --allow-root";
    Error::new(ErrorKind::Denied, why)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pattern::Pattern;

    /// A row that names uid 7, made by this role, for the agent's role `agent`.
    fn submitter(roles: &Roles, role: &str, on_behalf: Option<&str>) -> Result<Option<u32>> {
        let mut spec = Spec::new(Pattern::ReadToNothing, vec!["true".into()]);
        spec.on_behalf = on_behalf.map(str::to_string);
        let by = MadeBy { role: Some(role.to_string()), asks: "agent".into() };
        roles.submitter(&by, &spec, Some(7))
    }

    #[test]
    fn a_role_is_the_user_that_the_file_says_whomever_its_rows_name() {
        let roles =
            Roles::parse("# roles\nann  daemon\nmounts * # speak for others\nodd name root\n").unwrap();
        let denied = |role: &str, behalf: Option<&str>, says: &str| {
            let error = submitter(&roles, role, behalf).unwrap_err();
            assert!(error.kind() == ErrorKind::Denied && error.to_string().contains(says), "{error}");
        };
        assert_eq!(submitter(&roles, "ann", None).unwrap(), Some(1), "and not 7");
        assert_eq!(submitter(&roles, "odd name", None).unwrap(), Some(0));
        assert_eq!(submitter(&roles, "agent", None).unwrap(), Some(7), "it could do all that the agent does");
        denied("eve", None, "`eve` has made it");
        // A rule's job: of the rule's role, if who has made it may speak for it.
        for speaks in ["agent", "mounts"] {
            assert_eq!(submitter(&roles, speaks, Some("ann")).unwrap(), Some(1));
            assert_eq!(submitter(&roles, speaks, Some("agent")).unwrap(), Some(7));
            denied(speaks, Some("eve"), "`eve` has made it");
            denied(speaks, Some(""), "");
        }
        denied("ann", Some("agent"), "`ann *`");
        let unknown = MadeBy { role: None, asks: "agent".into() };
        let spec = Spec::new(Pattern::ReadToNothing, vec!["true".into()]);
        assert_eq!(roles.submitter(&unknown, &spec, Some(7)).unwrap_err().kind(), ErrorKind::Denied);
    }

    #[test]
    fn a_file_of_roles_that_says_nothing_clear_is_refused() {
        for (text, says) in [
            ("ann", "line 1"),
            ("\nann nobody-of-this-name", "line 2: there is no user"),
            ("ann root\nann daemon", "line 2: the role `ann` is there twice"),
        ] {
            let error = Roles::parse(text).unwrap_err();
            assert!(error.kind() == ErrorKind::Invalid && error.to_string().contains(says), "{error}");
        }
    }
}
