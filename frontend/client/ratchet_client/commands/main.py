"""Entry point: the command tree, and how errors become messages and exit codes."""

import os
import sys

import click
from click.shell_completion import get_completion_class

from ratchet_client.commands.accounts import login, logout, tokens, whoami
from ratchet_client.commands.api import api
from ratchet_client.commands.compare import compare
from ratchet_client.commands.episodes import episodes
from ratchet_client.commands.evaluations import evaluations
from ratchet_client.commands.gates import gates
from ratchet_client.commands.output import ExitCode
from ratchet_client.commands.policies import channels, policies
from ratchet_client.commands.runs import logs, runs
from ratchet_client.commands.session import Session, json_option
from ratchet_client.commands.submit import submit
from ratchet_client.commands.suites import suites
from ratchet_client.commands.watch import watch
from ratchet_client.errors import RatchetError, TimedOut, UsageProblem

_SINGULARS = {"run": "runs", "gate": "gates", "suite": "suites", "policy": "policies", "token": "tokens"}
_SINGULARS |= {"episode": "episodes", "channel": "channels", "evaluation": "evaluations"}
INTERRUPTED = 130  # as shells report it


class Commands(click.Group):
    """Lists commands in the order of use, and takes a noun in the singular too."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return super().get_command(ctx, _SINGULARS.get(cmd_name, cmd_name))


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.option("--url", default="", metavar="URL", help="The server; else RATCHET_URL, else the last login.")
@click.option(
    "--patience", type=click.FloatRange(min=0), default=30, envvar="RATCHET_PATIENCE", metavar="SECONDS",
    show_default=True, help="How long to try again while the server is away.",
)  # fmt: skip
@click.version_option(package_name="ratchet-client", prog_name="ratchet")
@click.pass_context
def ratchet(context: click.Context, url: str, patience: float) -> None:
    """Runs, episodes and decisions of a Ratchet server.

    Nouns may be in the singular: `ratchet gate show` is `ratchet gates show`.

    Exit codes: 0 pass, 1 fail, 2 inconclusive, 3 error.
    """
    session = context.ensure_object(Session)
    session.url, session.patience_seconds = url, patience


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script of a shell.

    E.g. `eval "$(ratchet completion bash)"`.
    """
    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(ratchet, {}, "ratchet", "_RATCHET_COMPLETE").source())


for command in (
    login, logout, whoami, submit, watch, logs, runs, episodes, compare, evaluations, gates, suites, policies, channels,
    tokens, api, completion,
):  # fmt: skip
    ratchet.add_command(command)
for group in (ratchet, *ratchet.commands.values()):
    if isinstance(group, click.Group):
        json_option(group)  # --json goes before a subcommand too


def usage_problem(error: click.ClickException) -> UsageProblem:
    """A wrong command line as an error with its code, for who asked for JSON."""
    context = error.ctx if isinstance(error, click.UsageError) else None
    hint = f"{context.command_path} --help" if context else ""
    message = "Missing command." if isinstance(error, click.exceptions.NoArgsIsHelpError) else ""
    return UsageProblem(message or error.format_message(), hint=hint)


def main() -> None:
    """Run the command; every way to end has an exit code."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal without UTF-8 still gets its answer
    code: object = ExitCode.ERROR
    session = Session()
    try:
        # Not standalone: click's own exit code of a usage error is 2, which here means inconclusive.
        code = ratchet.main(prog_name="ratchet", standalone_mode=False, obj=session)
        sys.stdout.flush()
    except click.ClickException as error:
        if session.output.as_json or "--json" in sys.argv[1:]:  # parsing may have ended before the option's turn
            session.output.as_json = True
            session.output.error(usage_problem(error))
        else:
            error.show()
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        code = INTERRUPTED
    except TimedOut as error:
        session.output.note(error.message)
        code = ExitCode.INCONCLUSIVE
    except RatchetError as error:
        session.output.error(error)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader has what it wanted
        code = ExitCode.PASS
    finally:
        session.close()
    sys.exit(int(code) if isinstance(code, int) else ExitCode.PASS)
