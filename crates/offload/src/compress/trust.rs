//! Says for how many frames a trial's verdict holds. Trials cost time, and neighbouring frames are
//! alike.

/// The last trial's verdict (the default is a no), and for how many more frames it holds. Each
/// trial that confirms the one before doubles that number, up to a limit.
#[derive(Clone, Copy, Debug)]
pub(super) struct Trust<Verdict = bool> {
    verdict: Verdict,
    /// The strength of the signs that led to the verdict.
    strength: f32,
    streak: u32,
    credit: u32,
    limit: u32,
}

impl<Verdict: Copy + PartialEq + Default> Trust<Verdict> {
    /// A verdict that holds for at most `limit` frames.
    pub fn new(limit: u32) -> Self {
        Self { verdict: Verdict::default(), strength: 0.0, streak: 0, credit: 0, limit }
    }

    /// The verdict for a frame whose signs have this strength. `None`: it needs a trial.
    pub fn ask(&mut self, strength: f32) -> Option<Verdict> {
        // A yes holds for signs at least as strong, a no for signs at most as strong, with some
        // tolerance.
        let is_no = self.verdict == Verdict::default();
        let alike = if is_no { strength <= 1.33 * self.strength } else { strength >= 0.75 * self.strength };
        if self.credit == 0 || !alike {
            return None;
        }
        self.credit -= 1;
        Some(self.verdict)
    }

    /// Records a trial's verdict.
    pub fn learn(&mut self, verdict: Verdict, strength: f32) -> Verdict {
        self.streak =
            if self.streak > 0 && verdict == self.verdict { (2 * self.streak).min(self.limit) } else { 1 };
        (self.verdict, self.strength, self.credit) = (verdict, strength, self.streak);
        verdict
    }

    /// The verdict was wrong, so the next frame gets a trial.
    pub fn forget(&mut self) {
        (self.streak, self.credit) = (0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_repeats_is_tried_less_and_less_and_what_changes_at_once() {
        let mut trust = Trust::new(4);
        let tried: Vec<usize> = (0..18)
            .filter(|_| {
                let asked = trust.ask(1.0);
                if asked.is_none() {
                    trust.learn(true, 1.0);
                }
                asked.is_none()
            })
            .collect();
        assert_eq!(tried, [0, 2, 5, 10, 15]);
        assert_eq!(trust.ask(0.5), None, "weaker signs than those that were tried");
        assert_eq!(trust.ask(1.0), Some(true), "the trust in the others is left");
        trust.forget();
        assert_eq!(trust.ask(1.0), None);
        trust.learn(false, 1.0);
        assert_eq!(trust.ask(2.0), None, "stronger signs than those that were in vain");
        assert_eq!(trust.ask(1.0), Some(false));
    }
}
