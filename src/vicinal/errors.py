"""Our exceptions. Each message is one line that says what is wrong, where, and what would be right."""


class InputError(ValueError):
    """Bad input, described in one line: what is wrong, where it stands, and what would be right.

    The command prints the message and exits with status 2; a library user sees a ``ValueError``.
    """


class TrainingStoppedError(RuntimeError):
    """A run ended before its last epoch; `exit_status` is what the command answers."""

    exit_status = 1


class NonFiniteLossError(TrainingStoppedError):
    """The loss or its gradient became infinite or NaN; says the step, the loss's parts and the images."""


class NotBetterError(TrainingStoppedError):
    """What was trained is never better than doing without it; says by which scores."""


class InterruptedRunError(TrainingStoppedError):
    """The run was asked to stop, has saved its state, and says how to go on."""

    exit_status = 130
