"""What the expansion finds wrong, gathered while it goes on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ...ir.diagnostics import Diagnostic, InputError, Source, Span, did_you_mean

MAX_FINDINGS = 100  # reported at once
MAX_SHOWN = 8  # known names in a hint
MAX_GUESSES = 20  # names guessed at; a guess compares with every known name


class Refused(Exception):
    """A statement cannot be expanded: one finding, caught where the statement is handled."""

    def __init__(self, message: str, span: Span, hint: str | None = None):
        super().__init__(message)
        self.message, self.span, self.hint = message, span, hint


def _known(names: Sequence[str]) -> str | None:
    """A hint at the names that there are."""
    more = ", ..." if len(names) > MAX_SHOWN else ""
    return f"known here are {', '.join(f'`{name}`' for name in names[:MAX_SHOWN])}{more}" if names else None


class TooLarge(InputError):
    """Nothing is wrong but sizes: a value, or what an op goes over, is larger than anything that could run, or values
    are more than anything has."""


class Report:
    """The findings about one source."""

    def __init__(self, source: Source):
        self.source = source
        self._found: list[Diagnostic] = []
        self._guesses = 0

    def __len__(self) -> int:
        return len(self._found)

    def add(self, message: str, span: Span | None, hint: str | None = None) -> None:
        """Note a finding, once. Raises InputError with all of them when there are very many."""
        found = Diagnostic(message, span, hint, self.source if span else None)
        if found not in self._found[-1:]:  # a declaration of several names is looked at for each
            self._found.append(found)
        if len(self._found) >= MAX_FINDINGS:
            self.finish()

    def refuse(self, refused: Refused) -> None:
        """Note why a statement was refused."""
        self.add(refused.message, refused.span, refused.hint)

    def unknown(
        self,
        what: str,
        name: str,
        span: Span | None,
        known: Iterable[str],
        hint: str | None = None,
        words: Sequence[str] = (),
    ) -> None:
        """Note a name that stands for nothing. It hints at the closest known one, else `hint`, else what is known.
        `words`: what may be meant besides, and is no `what`."""
        self._guesses += 1
        names = list(dict.fromkeys(known))
        guess = did_you_mean(name, [*names, *words]) if self._guesses <= MAX_GUESSES else None
        self.add(f"{what} `{name}` is not declared.", span, guess or hint or _known(names))

    def finish(self, kind: type[InputError] = InputError) -> None:
        """Raise an error of `kind` with the findings in source order, if there are any."""
        if self._found:
            order = sorted(self._found, key=lambda d: (d.span.line, d.span.column) if d.span else (0, 0))
            raise kind(order)
