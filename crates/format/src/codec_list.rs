//! Ordered lists of codecs with their devices: `gzip:6@qat,zstd:3@cpu`.

use std::fmt;

use crate::{CodecSpec, FormatError, Objective};

/// A kind of device that compresses.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, PartialOrd, Ord, Default)]
pub enum CodecDevice {
    /// The best one: a device if that is predicted to pay, else the processor.
    #[default]
    Any,
    /// The processor.
    Cpu,
    /// Intel QAT.
    Qat,
    /// A GPU, by nvCOMP.
    Nvcomp,
    /// A simulated device.
    Sim,
}

impl CodecDevice {
    /// Every kind.
    pub const ALL: [CodecDevice; 5] = [Self::Any, Self::Cpu, Self::Qat, Self::Nvcomp, Self::Sim];

    /// Its name, with which devices' own names begin.
    pub fn name(self) -> &'static str {
        match self {
            Self::Any => "any",
            Self::Cpu => "cpu",
            Self::Qat => "qat",
            Self::Nvcomp => "nvcomp",
            Self::Sim => "sim",
        }
    }

    /// From its name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|device| device.name() == name)
    }
}

/// An entry of a list.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct Listed {
    /// The codec.
    pub codec: ListedCodec,
    /// The kind of device.
    pub device: CodecDevice,
}

/// The codec of an entry of a list.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum ListedCodec {
    /// This codec at this level.
    Fixed(CodecSpec),
    /// The choice of `auto`.
    Auto(Objective),
}

impl ListedCodec {
    /// Parses `auto`, `auto:throughput`, `auto:ratio`, `auto:cpu`, or what [`CodecSpec::parse`]
    /// accepts.
    pub(crate) fn parse(text: &str) -> Result<Self, FormatError> {
        let bad =
            || FormatError::Text(format!("`{text}`: use auto, auto:throughput, auto:ratio or auto:cpu"));
        match text.split_once(':') {
            None if text == "auto" => Ok(Self::Auto(Objective::default())),
            Some(("auto", name)) => {
                let found = Objective::ALL.into_iter().find(|objective| objective.name() == name);
                found.map(Self::Auto).ok_or_else(bad)
            }
            _ => CodecSpec::parse(text).map(Self::Fixed).map_err(|error| match error {
                FormatError::Text(why) => FormatError::Text(format!(
                    "{why}, auto (auto:throughput, auto:ratio, auto:cpu), or a list such as gzip:6@qat,zstd:3@cpu"
                )),
                other => other,
            }),
        }
    }
}

impl fmt::Display for ListedCodec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(spec) => spec.fmt(f),
            Self::Auto(Objective::Throughput) => f.write_str("auto"),
            Self::Auto(objective) => write!(f, "auto:{}", objective.name()),
        }
    }
}

/// One to four entries, the preferred first.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct CodecList {
    entries: [Option<Listed>; CodecList::MOST],
}

impl CodecList {
    /// The most entries.
    pub const MOST: usize = 4;

    /// The entries, in their order.
    pub fn entries(&self) -> impl Iterator<Item = Listed> + Clone + use<> {
        self.entries.into_iter().flatten()
    }

    /// Parses entries `CODEC[@DEVICE]`, separated by commas.
    ///
    /// # Errors
    /// [`FormatError::Text`] says what is accepted.
    pub(crate) fn parse(text: &str) -> Result<Self, FormatError> {
        let mut entries = [None; Self::MOST];
        for (at, entry) in text.split(',').enumerate() {
            let Some(place) = entries.get_mut(at) else {
                let why =
                    format!("`{text}`: a list has at most {} entries (CODEC@DEVICE, or auto)", Self::MOST);
                return Err(FormatError::Text(why));
            };
            *place = Some(Self::entry(entry.trim())?);
        }
        Ok(Self { entries })
    }

    fn entry(text: &str) -> Result<Listed, FormatError> {
        let (codec, device) = text.split_once('@').unwrap_or((text, "any"));
        let device = CodecDevice::parse(device).ok_or_else(|| {
            let names = CodecDevice::ALL.map(CodecDevice::name).join(", ");
            FormatError::Text(format!("`{text}`: `{device}` is no device that compresses; use CODEC@DEVICE with one of {names}, or auto"))
        })?;
        Ok(Listed { codec: ListedCodec::parse(codec)?, device })
    }
}

impl fmt::Display for CodecList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, Listed { codec, device }) in self.entries().enumerate() {
            let comma = if at > 0 { "," } else { "" };
            write!(f, "{comma}{codec}")?;
            // A device distinguishes a list of one entry from a codec.
            if device != CodecDevice::Any || self.entries[1].is_none() {
                write!(f, "@{}", device.name())?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::CodecChoice;

    #[test]
    fn lists_read_back_in_their_order() {
        for text in [
            "gzip:6@qat,zstd:3@cpu",
            "gzip:1@qat,auto",
            "zstd:3@nvcomp",
            "lz4@any",
            "zstd:3@nvcomp,gzip:1@qat,zstd:1@sim,auto:cpu@cpu",
        ] {
            let choice = CodecChoice::parse(text).unwrap();
            assert_eq!(choice.to_string(), text);
            assert_eq!(CodecChoice::parse(&choice.to_string()), Ok(choice));
        }
        let CodecChoice::Listed(list) = CodecChoice::parse("gzip@qat, zstd:3@cpu").unwrap() else {
            panic!("a list")
        };
        let devices: Vec<_> = list.entries().map(|entry| entry.device).collect();
        assert_eq!(devices, [CodecDevice::Qat, CodecDevice::Cpu]);
        assert_eq!(list.in_software().to_string(), "zstd:3");
        let CodecChoice::Listed(alone) = CodecChoice::parse("gzip:1@qat").unwrap() else { panic!("a list") };
        assert_eq!(alone.in_software().to_string(), "gzip:1");
    }

    #[test]
    fn nonsense_in_a_list_is_refused_with_what_would_be_accepted() {
        for text in [
            "gzip@",
            "@qat",
            "gzip@fpga",
            "gzip@qat,",
            "zstd:99@cpu",
            "a,b",
            "lz4,lz4,lz4,lz4,lz4",
            "gzip@qat@cpu",
        ] {
            let error = CodecChoice::parse(text).unwrap_err().to_string();
            assert!(error.contains("auto"), "{text}: {error}");
        }
    }
}
