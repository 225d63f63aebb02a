"""`dpzv keys`: make an authority, issue certificates to parties, revoke them, show what they say."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from dpzv.cli.options import Json

if TYPE_CHECKING:
    from dpzv.network.keyfiles import Description

__all__ = ["app"]

app = typer.Typer(
    help="Identity: make an authority, issue certificates to parties, revoke them, look at them.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.command()
def init(
    out: Annotated[Path, typer.Option("--out", help="The folder for ca.crt, ca.key and alignment.key.")],
    days: Annotated[int, typer.Option("--days", help="How long the authority is valid.")] = 3650,
    keep_alignment: Annotated[
        Path | None,
        typer.Option("--keep-alignment", help="The folder of the authority that it replaces; runs go on with its key."),
    ] = None,
) -> None:
    """Make a certificate authority, and the key with which parties hash record ids.

    Example: dpzv keys init --out authority
    """
    from dpzv.network.keyfiles import create_authority

    authority = create_authority(out, days, keep_alignment)
    typer.echo(
        f"{out / 'ca.crt'}: valid until {authority.certificate.not_valid_after_utc:%Y-%m-%d}; every party gets it"
    )
    typer.echo(f"{out / 'ca.key'}: secret; keep it here, since whoever has it can pose as any party")
    typer.echo(f"{out / 'alignment.key'}: secret of the parties; hashes record ids")


@app.command()
def issue(
    name: Annotated[str, typer.Argument(help="The party: letters, digits, - and _.")],
    ca: Annotated[Path, typer.Option("--ca", help="The authority's folder, of `dpzv keys init`.")],
    out: Annotated[Path, typer.Option("--out", help="The folder for the party's files.")],
    host: Annotated[
        list[str] | None,
        typer.Option("--host", help="A host name or IP address of the party; again for more. [localhost, 127.0.0.1]"),
    ] = None,
    days: Annotated[int, typer.Option("--days", help="How long the certificate is valid.")] = 90,
    renew: Annotated[
        bool, typer.Option("--renew", help="Replace the certificate that is there; its key and hosts stay.")
    ] = False,
) -> None:
    """Issue the key and the certificate of a party.

    Example: dpzv keys issue hospital --ca authority --out hospital --host vfl.hospital.example
    """
    from dpzv.network.keyfiles import describe, issue_party

    issue_party(ca, name, out, host or None, days, renew=renew)
    _print(describe(out / f"{name}.crt"))
    typer.echo(
        f"{out / f'{name}.key'} is for {name} alone, {out / 'alignment.key'} for the parties alone; both are secret."
    )


@app.command()
def revoke(
    name: Annotated[str, typer.Argument(help="The party that is shut out.")],
    ca: Annotated[Path, typer.Option("--ca", help="The authority's folder, of `dpzv keys init`.")],
) -> None:
    """Revoke all certificates of a party: put them on the authority's signed list, ca.crl.

    Example: dpzv keys revoke hospital --ca authority
    """
    from dpzv.network.keyfiles import revoke_party

    fresh = revoke_party(ca, name)
    typer.echo(f"{ca / 'ca.crl'}: all certificates of {name} are revoked, {fresh} of them now")
    typer.echo("copy it into the server's keys folder, as ca.crl; the server closes the party within seconds.")


@app.command()
def show(
    files: Annotated[list[Path], typer.Argument(help="Certificates, e.g. hospital/hospital.crt.")],
    json: Json = False,
) -> None:
    """Show whose a certificate is, until when, and whether it belongs to the ca.crt beside it.

    Example: dpzv keys show hospital/hospital.crt
    """
    from dpzv.network.keyfiles import describe

    found = [describe(path) for path in files]
    if json:
        typer.echo(msgspec.json.encode(found).decode())
        return
    for entry in found:
        _print(entry)


def _print(entry: Description) -> None:
    left = f"{entry.days_left:.0f} days left" if entry.days_left > 0 else f"{-entry.days_left:.0f} days ago"
    typer.echo(f"{entry.file}: {'authority' if entry.authority else 'party'} {entry.name}")
    if not entry.authority:
        typer.echo(f"  issued by    {entry.issuer}")
        typer.echo(f"  hosts        {', '.join(entry.hosts) or 'none'}")
    typer.echo(f"  valid until  {entry.valid_until:%Y-%m-%d %H:%M} UTC ({left})")
    typer.echo(f"  sha256       {entry.sha256}")
    for problem in entry.problems:
        typer.echo(f"  PROBLEM: it {problem}.")
