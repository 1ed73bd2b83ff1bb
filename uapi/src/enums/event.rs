//! Numbers of asynchronous events.

wire_enum! {
    /// The type of an asynchronous event.
    AsyncEventType, "IBV_EVENT_";
    /// A CQ overflowed or failed.
    CQ_ERR = 0;
    /// A QP failed and is in error.
    QP_FATAL = 1;
    /// A peer sent an invalid request.
    QP_REQ_ERR = 2;
    /// A peer violated access rights.
    QP_ACCESS_ERR = 3;
    /// Something arrived on a QP not yet ready to send.
    COMM_EST = 4;
    /// The send queue has drained.
    SQ_DRAINED = 5;
    /// The QP migrated to its alternate path.
    PATH_MIG = 6;
    /// The alternate path failed.
    PATH_MIG_ERR = 7;
    /// The device failed.
    DEVICE_FATAL = 8;
    /// A port came up.
    PORT_ACTIVE = 9;
    /// A port went down.
    PORT_ERR = 10;
    /// A port's LID changed.
    LID_CHANGE = 11;
    /// A port's partition keys changed.
    PKEY_CHANGE = 12;
    /// The subnet manager changed.
    SM_CHANGE = 13;
    /// An SRQ failed.
    SRQ_ERR = 14;
    /// An SRQ fell below its limit.
    SRQ_LIMIT_REACHED = 15;
    /// A QP in error has taken its last request from its SRQ.
    QP_LAST_WQE_REACHED = 16;
    /// The subnet manager requests another registration.
    CLIENT_REREGISTER = 17;
    /// A port's GIDs changed.
    GID_CHANGE = 18;
    /// A WQ failed.
    WQ_FATAL = 19;
    /// The effective speed of a port changed. Since Linux 7.0.
    DEVICE_SPEED_CHANGE = 20;
}

impl AsyncEventType {
    /// A short description for people, if the value is known here.
    #[must_use]
    pub const fn text(self) -> Option<&'static str> {
        Some(match self {
            Self::CQ_ERR => "CQ error",
            Self::QP_FATAL => "QP fatal error",
            Self::QP_REQ_ERR => "QP request error",
            Self::QP_ACCESS_ERR => "QP access error",
            Self::COMM_EST => "communication established",
            Self::SQ_DRAINED => "send queue drained",
            Self::PATH_MIG => "path migrated",
            Self::PATH_MIG_ERR => "path migration error",
            Self::DEVICE_FATAL => "device fatal error",
            Self::PORT_ACTIVE => "port active",
            Self::PORT_ERR => "port error",
            Self::LID_CHANGE => "LID changed",
            Self::PKEY_CHANGE => "P_Key table changed",
            Self::SM_CHANGE => "subnet manager changed",
            Self::SRQ_ERR => "SRQ error",
            Self::SRQ_LIMIT_REACHED => "SRQ limit reached",
            Self::QP_LAST_WQE_REACHED => "last WQE reached",
            Self::CLIENT_REREGISTER => "client reregistration wanted",
            Self::GID_CHANGE => "GID table changed",
            Self::WQ_FATAL => "WQ fatal error",
            Self::DEVICE_SPEED_CHANGE => "device speed changed",
            _ => return None,
        })
    }
}
