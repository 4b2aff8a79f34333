"""Completion scripts for shells, from the commands themselves; they are plain text and start no Python at a key."""

from fedwright.cli.command_tree import Command, commands

BASH = """# bash completion of fedwright; zsh reads it through bashcompinit
_fedwright() {{
    local word="${{COMP_WORDS[COMP_CWORD]}}" path="" next place
    for ((place = 1; place < COMP_CWORD; place++)); do
        next="${{COMP_WORDS[place]}}"
        case " $(_fedwright_below "$path") " in *" $next "*) path="${{path:+$path }}$next" ;; *) break ;; esac
    done
    if [[ $word == -* ]]; then
        COMPREPLY=($(compgen -W "$(_fedwright_options "$path")" -- "$word"))
    else
        COMPREPLY=($(compgen -W "$(_fedwright_below "$path")" -- "$word") $(compgen -f -- "$word"))
    fi
}}
_fedwright_below() {{
    case "$1" in
{below}
    esac
}}
_fedwright_options() {{
    case "$1" in
{options}
    esac
}}
complete -o filenames -F _fedwright fedwright
"""
PROGRAM = "fedwright"
ZSH = """#compdef fedwright
autoload -U +X bashcompinit && bashcompinit
{bash}"""


def script_for(shell: str) -> str:
    """What a shell reads to complete the words of `fedwright`."""
    found = list(commands())
    if shell == "fish":
        return "".join(_fish(command) for command in found)
    bash = BASH.format(
        below="\n".join(_case(command, [*command.inner, *_choices(command)]) for command in found),
        options="\n".join(_case(command, _options(command)) for command in found),
    )
    return ZSH.format(bash=bash) if shell == "zsh" else bash


def _case(command: Command, words: list[str]) -> str:
    return f'        "{" ".join(command.words)}") echo "{" ".join(words)}" ;;'


def _options(command: Command) -> list[str]:
    return [name for action in command.options for name in action.option_strings]


def _choices(command: Command) -> list[str]:
    return [str(choice) for action in command.arguments for choice in action.choices or ()]


def _fish(command: Command) -> str:
    """Lines that hold behind the words of one command."""
    seen = " ".join(command.words)
    here = f"__fish_seen_subcommand_from {seen}" if seen else "__fish_use_subcommand"
    if len(command.words) > 1:
        here = "; and ".join(f"__fish_seen_subcommand_from {word}" for word in command.words)
    lines = [f"complete -c {PROGRAM} -n '{here}' -a '{name}'" for name in [*command.inner, *_choices(command)]]
    for name in _options(command):
        kind = "l" if name.startswith("--") else "s"
        lines.append(f"complete -c {PROGRAM} -n '{here}' -{kind} {name.lstrip('-')}")
    return "\n".join(lines) + "\n" if lines else ""
