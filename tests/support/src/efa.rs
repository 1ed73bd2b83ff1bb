//! The EFA made of software as a test in the guest sees it.

/// The EFA that the guest has.
#[derive(Clone, Copy, Debug)]
pub struct Efa {
    /// How many functions: the devices are `efa_0` and so on.
    pub functions: u16,
}

impl Efa {
    /// Reads `VM_HCA`, as `efa=2`. None where there is no EFA.
    pub fn of_guest() -> Option<Self> {
        std::env::var_os("VM_GUEST")?;
        let text = std::env::var("VM_HCA").ok()?;
        let functions = text.strip_prefix("efa=")?.parse().ok()?;
        Some(Self { functions })
    }

    /// The names of its devices.
    pub fn devices(self) -> impl Iterator<Item = String> {
        (0..self.functions).map(|number| format!("efa_{number}"))
    }

    /// The devices at both ends of a wire: two if there are two. The first has no limits for batches, the
    /// second has.
    pub fn ends(self) -> (String, String) {
        let last = self.functions.min(2) - 1;
        ("efa_0".to_owned(), format!("efa_{last}"))
    }
}
