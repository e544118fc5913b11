//! Trials cost time, and neighbours are alike: how long what a trial said is believed.

/// What the last trial said (the default is a no), and how many more frames it holds for. Each trial that says the same as the
/// one before doubles that, up to a limit.
#[derive(Clone, Copy, Debug)]
pub(super) struct Trust<Verdict = bool> {
    verdict: Verdict,
    /// The strength of the signs that led to it.
    strength: f32,
    streak: u32,
    credit: u32,
    limit: u32,
}

impl<Verdict: Copy + PartialEq + Default> Trust<Verdict> {
    /// Believing for `limit` frames at most.
    pub fn new(limit: u32) -> Self {
        Self { verdict: Verdict::default(), strength: 0.0, streak: 0, credit: 0, limit }
    }

    /// What is believed of a frame whose signs have this strength; `None`: it has to be tried.
    pub fn ask(&mut self, strength: f32) -> Option<Verdict> {
        // A yes holds for signs as strong, a no for signs as weak.
        let is_no = self.verdict == Verdict::default();
        let alike = if is_no { strength <= 1.33 * self.strength } else { strength >= 0.75 * self.strength };
        if self.credit == 0 || !alike {
            return None;
        }
        self.credit -= 1;
        Some(self.verdict)
    }

    /// What a trial said.
    pub fn learn(&mut self, verdict: Verdict, strength: f32) -> Verdict {
        self.streak =
            if self.streak > 0 && verdict == self.verdict { (2 * self.streak).min(self.limit) } else { 1 };
        (self.verdict, self.strength, self.credit) = (verdict, strength, self.streak);
        verdict
    }

    /// It turned out otherwise: the next one is tried.
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
