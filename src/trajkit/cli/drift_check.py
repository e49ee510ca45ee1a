"""`trajkit drift-check`: would re-tokenising give other ids?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from trajkit.cli.console import Printer
from trajkit.cli.options import (
    ChatTemplatePath,
    Colour,
    Force,
    Limit,
    Now,
    Only,
    Quiet,
    Steps,
    TemplateKwargs,
    TokenizerPath,
    step_filter,
    template_kwargs,
)
from trajkit.errors import ExitCode, UsageProblem

if TYPE_CHECKING:
    from datetime import datetime

    from trajkit.drift.findings import DriftReport, Route
    from trajkit.drift.thresholds import Measured

_PROFILE = "profile"
_Form = Literal["text", "json", "jsonl", "md", "github", "sarif"]


def drift_check(
    data: Annotated[
        Path | None,
        typer.Argument(
            metavar="DATA",
            help="Step records: a .parquet file or an ingest folder. None with --route profile.",
        ),
    ] = None,
    tokenizer: TokenizerPath = None,
    route: Annotated[
        list[str] | None,
        typer.Option(
            "--route",
            metavar="ROUTE",
            help="Which way to check: ids, chain, join, render, pair, self; repeatable. Default: "
            "all that the data allow. profile, alone and without data, tells what the tokenizer "
            "and the template will do.",
        ),
    ] = None,
    against: Annotated[
        Path | None,
        typer.Option(
            "--against", metavar="DATA", help="Another recording of the same trajectories."
        ),
    ] = None,
    chat_template: ChatTemplatePath = None,
    kwargs: TemplateKwargs = None,
    now: Now = None,
    trajectory: Only = None,
    step: Steps = None,
    limit: Limit = None,
    model: Annotated[
        Path | None,
        typer.Option(
            "--model", metavar="DIR", help="Price the other spellings with this checkpoint, too."
        ),
    ] = None,
    device: Annotated[
        Literal["auto", "cpu", "cuda"], typer.Option("--device", help="Where --model runs.")
    ] = "auto",
    fail_on: Annotated[
        list[str] | None,
        typer.Option(
            "--fail-on",
            metavar="THRESHOLD",
            help="Exit 1 only then: action-tokens>0.5%, steps>10%, trajectories>0, regions>100, "
            "kind:structure, cause:NAME; repeatable. Default: any finding.",
        ),
    ] = None,
    allow_partial: Annotated[
        bool,
        typer.Option(
            "--allow-partial",
            help="Pass though something could not be checked; never if nothing could.",
        ),
    ] = False,
    fix: Annotated[
        bool, typer.Option("--fix", help="Name the setting to change for each cause; ids stay.")
    ] = False,
    output_format: Annotated[_Form, typer.Option("--format")] = "text",
    out: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            metavar="FILE",
            help="Write the report here; a .parquet file gets the findings as a table.",
        ),
    ] = None,
    force: Force = False,
    quiet: Quiet = False,
    color: Colour = "auto",
) -> None:
    """Find where re-tokenising the trajectories would change their ids.

    Route ids decodes each action and encodes it again, join does so with each whole sequence; chain
    asks whether each prompt starts with the prompt + action before it, and needs no tokenizer;
    render puts the messages through the chat template; pair compares with another recording; self
    asks whether the record agrees with itself.
    Exit 0 only when every route that the data allow was walked and found nothing, or less than
    --fail-on says; text alone can never be called clean.

      trajkit drift-check steps.parquet -t ./tokenizer
    """
    table = out if out is not None and out.suffix == ".parquet" else None
    with Printer(
        colour=color,
        quiet=quiet,
        out=out if table is None else None,
        overwrite=force,
        source=data,
    ) as printer:
        if _PROFILE in (route or ()):
            beside = {
                "DATA": data,
                "another --route": route != [_PROFILE],
                "--against": against,
                "--trajectory": trajectory,
                "--step": step,
                "--limit": limit,
                "--model": model,
                "--fail-on": fail_on,
                "--allow-partial": allow_partial,
                "--fix": fix,
                f"--format {output_format}": output_format not in ("text", "json"),
                f"-o {table}": table,
            }
            _refuse(beside)
            _profile(printer, tokenizer, chat_template, kwargs, now, output_format)
            return
        if data is None:
            raise UsageProblem(
                "U103",
                "drift-check needs DATA",
                hint="trajkit drift-check DATA -t TOKENIZER, or --route profile without data",
            )
        if model is not None and tokenizer is None:
            raise UsageProblem("U103", "--model needs a tokenizer", hint="give it with -t PATH")
        checked = _checked(
            data,
            tokenizer,
            fail_on or (),
            table,
            force,
            routes=_routes(route or ()),
            only=frozenset(trajectory or ()),
            limit=limit,
            steps=step_filter(step),
            against=against,
            chat_template=chat_template,
            template_kwargs=template_kwargs(kwargs),
            now=now,
        )
        from trajkit.cli.drift_forms import print_report

        report, measured = checked
        if model is not None and tokenizer is not None:
            from trajkit.engine.drift_price import price_drift_with_model

            report.logprob_price = price_drift_with_model(
                data, tokenizer, model, device=device, only=frozenset(trajectory or ()), limit=limit
            )
        print_report(printer, report, output_format, data=data, measured=measured, fix=fix)
    if _fails(report, measured, allow_partial):
        raise typer.Exit(ExitCode.FINDINGS)


def _checked(
    data: Path,
    tokenizer: Path | None,
    fail_on: Sequence[str],
    table: Path | None,
    force: bool,
    **options: Any,
) -> tuple[DriftReport, list[Measured]]:
    """Return the report and its thresholds; its findings are written where a table is named."""
    from trajkit.drift.check import drift_check as run
    from trajkit.drift.thresholds import parse_threshold
    from trajkit.store.read import open_dataset

    thresholds = [parse_threshold(text) for text in fail_on]
    dataset = open_dataset(data)
    if options["against"] is not None:
        options["against"] = open_dataset(options["against"])
    if table is not None:
        read = [one for one in (dataset, options["against"]) if one is not None]
        _refuse_inputs(table, [part for one in read for part in one.parts])
    report = run(dataset, tokenizer, **options)
    if table is not None:
        from trajkit.drift.table import write_findings

        write_findings(report, dataset, table, overwrite=force)
    return report, [threshold.measured(report) for threshold in thresholds]


def _fails(report: DriftReport, measured: Sequence[Measured], allow_partial: bool) -> bool:
    """Return whether to exit 1: too much was found, or too little could be checked.

    What nothing was measured of never passes, whatever is allowed.
    """
    was_checked = any(count.n_checked_steps for count in report.by_route.values())
    if not report.n_checkable_steps or not was_checked:
        return True
    if report.unchecked and not allow_partial:
        return True
    return any(one.holds for one in measured) if measured else bool(report.findings)


def _refuse(beside: Mapping[str, object]) -> None:
    """Raise U103 when something was given that a profile has no use for."""
    given = [name for name, value in beside.items() if value]
    if given:
        raise UsageProblem(
            "U103",
            f"--route profile measures no data, and takes no {given[0]}",
            hint="trajkit drift-check --route profile -t TOKENIZER --chat-template FILE",
        )


def _refuse_inputs(out: Path, read: Sequence[Path]) -> None:
    """Raise U102 when the output is one of the files that are read."""
    from trajkit.safe.files import same_file

    if any(same_file(out, one) for one in read):
        raise UsageProblem("U102", f"{out} is an input too", hint="give another path with -o")


def _profile(
    printer: Printer,
    tokenizer: Path | None,
    chat_template: Path | None,
    kwargs: str | None,
    now: datetime | None,
    output_format: str,
) -> None:
    from trajkit.cli.drift_profile import print_profile
    from trajkit.drift.profile import profile
    from trajkit.drift.routes.render import load_renderer
    from trajkit.template import Setting
    from trajkit.tokenizer import load_tokenizer

    if tokenizer is None:
        raise UsageProblem("U103", "route profile needs a tokenizer", hint="give it with -t PATH")
    given = template_kwargs(kwargs)
    loaded = load_tokenizer(tokenizer)
    template = load_renderer(chat_template, tokenizer, kwargs=given, now=now).template
    setting = Setting(kwargs=given, now=now)
    print_profile(printer, profile(loaded, template, setting=setting), output_format)


def _routes(names: Sequence[str]) -> list[Route]:
    from trajkit.drift.findings import Route

    try:
        return [Route(name) for name in names]
    except ValueError:
        known = ", ".join([*Route, _PROFILE])
        raise UsageProblem(
            "U103", f"--route expects one of {known}, got {', '.join(names)}"
        ) from None
