"""`dpzv privacy`: convert budgets, plan noise, read back what was spent, and the paper's theory in numbers.

Nothing here imports torch, and `convert` and `plan` without a sampled head do not import dp_accounting either.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import click
import msgspec
import typer

from dpzv.cli.options import Account, Json, with_options
from dpzv.declarations import HEAD_RULES, OURS
from dpzv.errors import ConfigError
from dpzv.validate import whole

if TYPE_CHECKING:
    from dpzv.privacy.plan import PlanRequest

__all__ = ["app"]

app = typer.Typer(
    help="Budgets: convert them, plan with them, see what was spent.", no_args_is_help=True, rich_markup_mode=None
)
Delta = Annotated[float | None, typer.Option("--delta", help="Failure probability delta_dp.")]
Epsilon = Annotated[float | None, typer.Option("--epsilon", help="Epsilon.")]


@app.command()
def convert(
    epsilon: Epsilon = None,
    delta: Delta = None,
    mu: Annotated[float | None, typer.Option("--mu", help="Gaussian-DP parameter mu.")] = None,
    json: Json = False,
) -> None:
    """Give two of epsilon, delta and mu; get the third.

    Example: dpzv privacy convert --epsilon 1 --delta 1e-5
    """
    from dpzv.privacy.gdp import delta_of, epsilon_of, mu_of
    from dpzv.validate import positive, probability

    if mu is None and epsilon is not None and delta is not None:
        mu = mu_of(positive("--epsilon", epsilon), probability("--delta", delta))
    elif epsilon is None and mu is not None and delta is not None:
        epsilon = epsilon_of(positive("--mu", mu), probability("--delta", delta))
    elif delta is None and mu is not None and epsilon is not None:
        delta = delta_of(positive("--epsilon", epsilon), positive("--mu", mu))
    else:
        given = sum(value is not None for value in (epsilon, delta, mu))
        raise ConfigError(f"convert needs two of --epsilon, --delta and --mu, got {given}; give exactly two.")
    _print({"mu": mu, "epsilon": epsilon, "delta_dp": delta}, json)


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """The options of `dpzv privacy plan`."""

    epsilon: Annotated[float, typer.Option("--epsilon", help="The budget.")]
    delta: Annotated[float, typer.Option("--delta", help="Failure probability; below 1/records.")]
    records: Annotated[int, typer.Option("--records", help="Training records D.")]
    batch: Annotated[int, typer.Option("--batch", help="Records a release B.")]
    passes: Annotated[float, typer.Option("--passes", help="Passes of each device over its records.")]
    devices: Annotated[int, typer.Option("--devices", help="Devices M.")]
    clip: Annotated[float, typer.Option("--clip", help="Clip C, for each direction.")] = 1.0
    directions: Annotated[int, typer.Option("--directions", help="Directions a message K.")] = 1
    neighbours: Annotated[
        Literal["replace-one", "zero-out"], typer.Option("--neighbours", help="How one record differs.")
    ] = "replace-one"
    accounting: Account = "exact"
    head: Annotated[str, typer.Option("--head", help="How w_0 moves.", click_type=click.Choice(list(HEAD_RULES)))] = (
        "frozen"
    )
    head_batch: Annotated[int, typer.Option("--head-batch", help="dp-sgd: expected records a step.")] = 8192
    head_steps: Annotated[int, typer.Option("--head-steps", help="dp-sgd: steps in all.")] = 400
    head_share: Annotated[float, typer.Option("--head-share", help="dp-sgd: its share of mu^2.")] = 0.5
    sweep: Annotated[bool, typer.Option("--sweep", help="A table over batch, passes and split.")] = False
    json: Json = False

    def request(self, B: int, passes: float, head_share: float) -> PlanRequest:
        """The plan that is asked for, with these values in place of the options'."""
        from dpzv.privacy.plan import PlanRequest, participation_cap

        D, M = self.records, self.devices
        whole("--batch", B, 1)
        if not 0 < passes < math.inf:
            raise ConfigError(f"--passes must be a finite number above 0, got {passes:g}.")
        T = M * max(1, math.floor(passes * D / B))
        return PlanRequest(
            epsilon=self.epsilon,
            delta_dp=self.delta,
            accounting=self.accounting,
            neighbours=self.neighbours,
            protects="records",
            C=self.clip,
            B=B,
            D=D,
            M=M,
            T=T,
            participations=participation_cap(T=T, B=B, D=D, M=M),
            min_batch=1,
            head_rule=self.head,
            starts=tuple("random" for _ in range(M)),
            method=OURS,
            start_share=0.0,
            head_batch=min(self.head_batch, D),
            head_steps=self.head_steps,
            head_share=head_share,
            directions=self.directions,
        )


@app.command()
@with_options(PlanOptions)
def plan(asked: PlanOptions) -> None:
    """How much noise a budget needs, and what the paper's rule would have needed and claimed.

    Example: dpzv privacy plan --epsilon 1 --delta 1e-5 --records 60000 --batch 512 --passes 5 --devices 7
    """
    if not asked.sweep:
        figures = _figures(asked.request(asked.batch, asked.passes, asked.head_share))
        if not asked.json and not figures["z"]:
            del figures["z"]  # people are not shown the noise of a head without private steps; scripts get a 0
        _print(figures, asked.json)
        return
    with_head = bool(HEAD_RULES[asked.head].mechanism)
    rows = [
        _row(asked.request(B, n, share), n)
        for B in sorted({max(1, min(asked.records, int(asked.batch * factor))) for factor in (0.25, 0.5, 1, 2, 4)})
        for n in (asked.passes / 4, asked.passes, 4 * asked.passes)
        for share in ((0.25, 0.5, 0.75) if with_head else (asked.head_share,))
    ]
    _print_sweep(rows, with_head, asked.json)


@app.command()
def spent(
    folders: Annotated[list[Path], typer.Argument(help="Run folders, ledger files, or folders of runs.")],
    json: Json = False,
) -> None:
    """The privacy statement of one run, or of several added up, from their ledgers alone.

    Example: dpzv privacy spent runs/first runs/second
    """
    from dpzv.cli.show import statement_text
    from dpzv.privacy.statement import spent as read

    told = read(folders)
    if json:
        typer.echo(msgspec.json.encode(told.values()).decode())
        return
    statement_text(told.text())
    typer.echo("")
    typer.echo(told.table())


@app.command()
def close(
    folder: Annotated[Path, typer.Argument(help="The folder of a run that will not go on (or its ledger file).")],
) -> None:
    """End an unfinished run for good: later runs that name it as a parent may then pay for what it used only.

    Example: dpzv privacy close runs/first
    """
    from dpzv.privacy.lineage import end

    view = end(folder)
    typer.echo(
        f"Run {view.run_id[:8]} is ended for good, with {view.releases:,} of {view.plan.T:,} releases and "
        f"{view.head_steps:,} of {view.plan.head_steps:,} head steps; it can no longer be resumed."
    )


@dataclass(frozen=True, slots=True)
class TheoryOptions:
    """The options of `dpzv privacy theory`."""

    F: Annotated[float, typer.Option("--F", help="How far the loss at the start is above its infimum.")]
    L: Annotated[float, typer.Option("--L", help="Smoothness.")]
    l: Annotated[float, typer.Option("--l", help="Lipschitz constant.")]  # noqa: E741 (the paper's letter)
    sigma_s: Annotated[float, typer.Option("--sigma-s", help="Deviation of a record's gradient.")]
    d_0: Annotated[int, typer.Option("--d-0", help="Weights of the head; 0 if it is not trained.")]
    d_m: Annotated[list[int], typer.Option("--d-m", help="Weights of a device; once for each device.")]
    B: Annotated[int, typer.Option("--batch", help="Records a batch.")]
    T: Annotated[int, typer.Option("--rounds", help="Rounds.")]
    D: Annotated[int, typer.Option("--records", help="Records.")]
    mu: Annotated[float, typer.Option("--mu", help="Budget mu.")]
    q_m: Annotated[
        list[float] | None, typer.Option("--q-m", help="A device's share of the rounds; once for each; default: equal.")
    ] = None
    tau: Annotated[int, typer.Option("--tau", help="Largest delay in rounds.")] = 0
    C: Annotated[float | None, typer.Option("--clip", help="Clip; default: 1.5 times the least admitted.")] = None
    json: Json = False


@app.command()
@with_options(TheoryOptions)
def theory(asked: TheoryOptions) -> None:
    """The convergence theorem term by term; the step, smoothing and clip that it admits; the corollary's rounds.

    Example: dpzv privacy theory --F 2.3 --L 1 --l 1 --sigma-s 1 --d-0 2000 --d-m 1000 --d-m 500 --batch 512
    --rounds 10000 --records 60000 --mu 0.27
    """
    from dpzv.privacy import theory as paper
    from dpzv.privacy.gdp import paper_sigma_dp

    names = [field.name for field in dataclasses.fields(paper.Constants)]
    given = {name: getattr(asked, name) for name in names}
    constants = paper.Constants(**given | {"d_m": tuple(asked.d_m), "q_m": tuple(asked.q_m or ())})
    T, D, mu = asked.T, asked.D, asked.mu
    lam = paper.admissible_lam(constants, T)
    clip = asked.C if asked.C is not None else paper.least_clip(constants, lam) * 1.5
    eta, sigma_dp = paper.admissible_eta(constants, T, lam=lam, C=clip), paper_sigma_dp(clip, T, D, mu)
    least, d = paper.least_clip(constants, lam), constants.largest
    values: dict[str, Any] = {"eta": eta, "lam": lam, "C": clip, "least_C": least, "sigma_dp": sigma_dp}
    values["loss_bias"] = paper.loss_bias(constants.L, lam, d)
    values["smoothing_bias"] = paper.smoothing_bias(constants.L, lam, d)
    values["clip_bias"] = paper.clip_bias(constants, lam, clip, d)
    # for the largest party, at a point where the gradient is 0: there this alone still moves the weights
    values["second_moment"] = paper.second_moment(constants, 0.0, d=d, lam=lam, C=clip, sigma_dp=sigma_dp)
    found = paper.bound(constants, T=T, eta=eta, lam=lam, C=clip, sigma_dp=sigma_dp)
    values |= {**dataclasses.asdict(found), "bound": found.total}
    rest = paper.corollary(constants, C=clip, D=D, mu=mu)
    values |= {"corollary_rounds": rest.rounds, "corollary_rounds_printed": rest.printed_rounds}
    _print({**values, "corollary_rate": rest.rate}, asked.json)


def _figures(asked: PlanRequest) -> dict[str, Any]:
    """What `plan` prints: the plan, its parts, and the paper's rule beside it."""
    from dpzv.privacy.gdp import epsilon_of, mu_of, paper_sigma_dp, true_mu_of_paper
    from dpzv.privacy.planning import make_plan
    from dpzv.privacy.statement import parts_of
    from dpzv.privacy.wording import released

    made = make_plan(asked)
    paper_mu = mu_of(asked.epsilon, asked.delta_dp)
    paper_sigma = paper_sigma_dp(asked.clip, asked.T, asked.D, paper_mu)
    # the published rule is sigma_dp = constant / mu, so given sigma_dp it returns the mu that it claims for this noise
    claimed = epsilon_of(paper_sigma_dp(asked.clip, asked.T, asked.D, made.sigma_dp), asked.delta_dp)
    budget = ("sigma_dp", "mu", "epsilon", "epsilon_zero_out", "epsilon_replace_one", "delta_dp")
    values: dict[str, Any] = {
        **{name: getattr(made, name) for name in budget},
        "rounds": made.T,
        "released": released(made.method, made.B, made.directions),
        "participations": made.participations,
        "z": made.z,
        "parts": [] if asked.accounting == "paper" else list(msgspec.to_builtins(parts_of(made))),
        "paper_sigma_dp": paper_sigma,
        "paper_epsilon": claimed,
        "warnings": list(made.warnings),
    }
    if asked.accounting == "paper":
        true_mu = true_mu_of_paper(paper_mu, asked.B, asked.D)
        values["epsilon_counted"] = epsilon_of(true_mu, asked.delta_dp)
        values["guarantee"] = (
            "none: this is the published rule; for devices, who know the batches, epsilon is at least epsilon_counted"
        )
    return values


def _row(asked: PlanRequest, passes: float) -> dict[str, Any]:
    from dpzv.privacy.planning import make_plan

    made = make_plan(asked)
    return {
        "batch": asked.B,
        "passes": passes,
        "rounds": asked.T,
        "head_share": asked.head_share,
        "sigma_dp": made.sigma_dp,
        "noise_over_clip": made.sigma_dp / asked.C,
        "z": made.z,
    }


def _print_sweep(rows: list[dict[str, Any]], with_head: bool, json: bool) -> None:
    if json:
        typer.echo(msgspec.json.encode(rows).decode())
        return
    names = [name for name in rows[0] if with_head or name not in ("head_share", "z")]
    typer.echo("  ".join(f"{name:>15}" for name in names))
    for row in rows:
        typer.echo("  ".join(f"{row[name]:>15.6g}" for name in names))


def _print(values: dict[str, Any], json: bool) -> None:
    if json:
        typer.echo(msgspec.json.encode(values).decode())
        return
    width = max(len(name) for name in values)
    for name, value in values.items():
        for item in value if isinstance(value, list) else [value]:
            typer.echo(f"{name:<{width}}  {_text(item)}")


def _text(value: object) -> str:
    if isinstance(value, dict):  # a part of a plan
        figures = (f"{key} {_text(inner)}" for key, inner in value.items() if key != "name" and inner is not None)
        return f"{value['name']}: {', '.join(figures)}"
    return f"{value:.10g}" if isinstance(value, float) else str(value)
