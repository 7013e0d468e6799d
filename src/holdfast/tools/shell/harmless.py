"""Programs and options that are known to be harmless, as a table: they write, start and reach nothing.

As of 2026-11, for GNU and BSD tools, git 2.30 to 2.52, ripgrep 14 and 15, and pytest 8 and 9. What the table does not
name is unknown: another program, another option, an abbreviation of a long one. An option that writes (`sort -o`),
starts a program (`rg --pre`), reads names or patterns from a file (`grep -f`) or follows symlinks (`grep -R`) is left
out, not listed as bad: a list of everything bad is never complete.

    "-a -n= --color --color="      a flag, an option with a value, a flag, and the same with `=VALUE` in its word

The table says what of the words are files, too. When in doubt a word counts as one: a revision of git is then looked
up as the name of a file that does not exist, which does no harm.
"""

import re
from collections.abc import Sequence
from typing import Literal, NamedTuple

from holdfast.tools.permissions.acts import Extent

Word = tuple[str, bool]  # its text, and whether the shell leaves it as it is
File = tuple[str, bool, Extent]  # its path, whether the shell leaves it as it is, and how much of it is read


class Unknown(Exception):
    """What in a command the table does not know to be harmless."""


class Program(NamedTuple):
    """`operands`: files; text that means nothing; a pattern or a script of sed, then files; a format of date's."""

    options: str = ""
    operands: Literal["files", "text", "pattern", "script", "format", "none"] = "files"
    operands_max: int | None = None
    reads_here: bool = False  # the working directory, if no operand names anything
    reads_below: str = ""  # the options that read whole folders; "*" if it always does
    lists_below: str = ""  # the same for those that name what is in all folders below
    follows: bool = False  # it reads what is in a folder, through symlinks
    number: bool = False  # `-20` is the number of something
    clusters: bool = True  # `-la` is `-l -a`
    runs_folder: bool = False  # what it runs are programs in the working directory: to allow it is to allow those


_DIFF = (
    "-p -u -s -R -a -b -w -z -W -U= -M -C -D -S= -G= -B --patch --no-patch --unified= --raw --stat --stat= --numstat "
    "--shortstat --dirstat --summary --name-only --name-status --color --color= --no-color --word-diff --word-diff= "
    "--no-renames --find-renames --find-copies --cached --staged --check --full-index --binary --abbrev --abbrev= "
    "--ignore-all-space --ignore-space-change --ignore-space-at-eol --ignore-blank-lines --ignore-cr-at-eol "
    "--function-context --exit-code --quiet --minimal --patience --histogram --diff-algorithm= --diff-filter= "
    "--inter-hunk-context= --no-ext-diff --no-textconv --no-prefix --submodule --merge-base --compact-summary --text "
    "--patch-with-stat --patch-with-raw --relative --pickaxe-all --pickaxe-regex --no-color-moved --color-moved "
)
_LOG = (
    "-n= -i -E -F -c -m -t -r -g -L= --oneline --graph --decorate --decorate= --no-decorate --all --branches --tags "
    "--remotes --author= --committer= --grep= --since= --after= --until= --before= --max-count= --skip= --date= "
    "--pretty --pretty= --format= --abbrev-commit --no-abbrev-commit --reverse --follow --merges --no-merges "
    "--first-parent --topo-order --date-order --name-only --name-status --left-right --cherry-pick --no-walk "
    "--no-notes --all-match --invert-grep --regexp-ignore-case --full-history --ancestry-path --parents --children "
    "--boundary --simplify-by-decoration --no-mailmap --use-mailmap --walk-reflogs "
)
_GIT: dict[str, Program] = {
    "blame": Program("-l -t -s -e -w -c -f -n -p -L= -M -C --line-porcelain --porcelain --root --date= --show-email"),
    "branch": Program(
        "-a -r -v -vv --all --remotes --verbose --show-current --no-color --color --color= --no-abbrev",
        operands="none",
    ),
    "cat-file": Program("-t -s -e -p"),
    "describe": Program(
        "--all --tags --long --always --abbrev= --match= --exclude= --contains --exact-match --dirty"
    ),
    "diff": Program(_DIFF, reads_below="*"),  # in a repository of another user it compares any two folders
    "for-each-ref": Program("--count= --sort= --format= --points-at= --merged --no-merged --contains"),
    "grep": Program(
        "-n -i -I -l -L -c -h -H -w -v -o -E -F -G -P -q -p -W -e= -A= -B= -C= --cached --line-number --ignore-case "
        "--name-only --files-with-matches --count --word-regexp --invert-match --extended-regexp --fixed-strings "
        "--heading --break --show-function --function-context --color --color= --no-color --max-depth= --all-match",
        operands="pattern",
    ),
    "log": Program(_DIFF + _LOG, number=True),
    "ls-files": Program(
        "-c -d -m -o -i -s -u -z -t -v --cached --deleted --modified --others --ignored --stage --unmerged "
        "--exclude-standard --error-unmatch --full-name --directory --eol"
    ),
    "ls-tree": Program("-r -t -d -l -z --name-only --name-status --long --full-name --full-tree --abbrev"),
    "merge-base": Program("-a --all --octopus --is-ancestor --independent"),
    "name-rev": Program("--tags --name-only --always --all"),
    "reflog": Program(_LOG, operands="none", number=True),
    "remote": Program("-v --verbose", operands="none"),
    "rev-list": Program(_LOG + "--count --objects", number=True),
    "rev-parse": Program(
        "--short --short= --verify --quiet -q --abbrev-ref --symbolic-full-name --symbolic --show-toplevel --git-dir "
        "--git-common-dir --is-inside-work-tree --is-inside-git-dir --is-bare-repository --show-prefix --show-cdup "
        "--absolute-git-dir --show-object-format --all --branches --tags --remotes"
    ),
    "shortlog": Program("-n -s -e --numbered --summary --email --all --since= --until= --no-merges"),
    "show": Program(_DIFF + _LOG, number=True),
    "show-ref": Program("--heads --tags --hash --abbrev --verify -q -s -d"),
    "status": Program(
        "-s -b -v -z -u -uno -uall -unormal --short --branch --porcelain --porcelain= --long --verbose --show-stash "
        "--untracked-files --untracked-files= --ignored --ignored= --ahead-behind --no-ahead-behind --renames "
        "--no-renames --column --no-column"
    ),
}
_SHOWS = frozenset({"blame", "cat-file", "diff", "grep", "log", "show"})  # what is in files, not only their names
# Those of `git log` that show no more than messages, dates and names.
_TELLS = frozenset(
    f"{_LOG} -s -z -M -C --no-patch --stat --numstat --shortstat --dirstat --summary --compact-summary --color "
    "--no-color --no-renames --find-renames --find-copies --abbrev --diff-filter --relative --no-ext-diff "
    "--no-textconv --quiet".replace("=", "").split()
) - {"-c", "-m", "-L"}
_SUMS = "-b -t -z --binary --text --tag --zero"

PROGRAMS: dict[str, Program] = {
    "basename": Program("-a -s= -z --multiple --suffix= --zero", operands="text"),
    "cat": Program("-A -b -e -E -n -s -t -T -u -v --number --number-nonblank --show-all --show-ends --show-tabs"),
    "cd": Program("-L -P", operands_max=1),
    "cksum": Program(_SUMS),
    "cmp": Program("-b -l -s -n= -i= --print-bytes --verbose --silent --quiet --bytes= --ignore-initial="),
    "comm": Program("-1 -2 -3 -z --check-order --nocheck-order --total --zero-terminated --output-delimiter="),
    "cut": Program(
        "-b= -c= -d= -f= -n -s -z --bytes= --characters= --delimiter= --fields= --only-delimited --complement "
        "--output-delimiter= --zero-terminated"
    ),
    "date": Program(
        "-u -R -I --utc --universal --rfc-email --iso-8601 --iso-8601= --rfc-3339= -d= --date=", "format"
    ),
    "df": Program("-a -h -H -i -k -l -P -T --all --human-readable --inodes --local --portability --print-type"),
    "diff": Program(
        "-q -s -c -u -U= -C= -i -b -w -B -E -Z -a -y -t -p -N --brief --unified --unified= --ignore-case "
        "--ignore-all-space --ignore-space-change --ignore-blank-lines --side-by-side --width= --color --color= "
        "--report-identical-files --text --new-file --label= --strip-trailing-cr --suppress-common-lines",
        follows=True,
    ),
    "dirname": Program("-z --zero", operands="text"),
    "du": Program(
        "-a -b -c -d= -h -H -k -l -m -s -S -x --all --apparent-size --bytes --total --max-depth= --human-readable "
        "--summarize --one-file-system --exclude= --si",
        reads_here=True,
        lists_below="*",
    ),
    "echo": Program("-n -e -E", operands="text"),
    "false": Program(operands="text"),
    "file": Program("-b -i -N -k -h -r -0 --brief --mime --mime-type --mime-encoding --no-pad --keep-going"),
    "find": Program(
        "-H -P -name= -iname= -path= -ipath= -wholename= -regex= -iregex= -type= -xtype= -maxdepth= -mindepth= "
        "-size= -mtime= -mmin= -atime= -amin= -ctime= -cmin= -newer= -anewer= -cnewer= -perm= -user= -group= "
        "-uid= -gid= -links= -inum= -samefile= -empty -executable -readable -writable -nouser -nogroup -true "
        "-false -print -print0 -printf= -ls -prune -quit -depth -xdev -mount -not -and -or -a -o -regextype= "
        "-daystart -noleaf",
        reads_here=True,
        lists_below="*",
        clusters=False,
    ),
    "git": Program(),  # by its commands, above
    "grep": Program(
        "-a -b -c -E -F -G -h -H -i -I -l -L -n -o -P -q -r -s -T -U -v -w -x -y -z -Z -A= -B= -C= -D= -e= -m= "
        "--extended-regexp --fixed-strings --basic-regexp --perl-regexp --regexp= --ignore-case --no-ignore-case "
        "--invert-match --word-regexp --line-regexp --count --color --color= --colour --colour= --files-with-matches "
        "--files-without-match --max-count= --only-matching --quiet --silent --no-messages --byte-offset "
        "--with-filename --no-filename --label= --line-number --initial-tab --null --after-context= "
        "--before-context= --context= --text --binary-files= --exclude= --exclude-dir= --include= --recursive "
        "--line-buffered --null-data",
        operands="pattern",
        reads_below="-r --recursive",
        number=True,
    ),
    "head": Program("-c= -n= -q -v -z --bytes= --lines= --quiet --silent --verbose --zero-terminated", number=True),
    "id": Program("-a -g -G -n -r -u -z --group --groups --name --real --user --zero", operands="text"),
    "ls": Program(
        "-a -A -b -B -c -C -d -f -F -g -G -h -H -i -k -l -m -n -N -o -p -q -Q -r -R -s -S -t -u -U -v -w= -x -X "
        "-1 -Z -I= -T= --all --almost-all --author --escape --block-size= --ignore-backups --color --color= "
        "--directory --classify --file-type --format= --full-time --group-directories-first --no-group "
        "--human-readable --si --hide= --inode --ignore= --kibibytes --literal --numeric-uid-gid --quote-name "
        "--reverse --recursive --size --sort= --time= --time-style= --zero",
        reads_here=True,
        lists_below="-R --recursive",
    ),
    "md5sum": Program(_SUMS),
    "nl": Program("-b= -n= -s= -w= -v= -i= -d= -f= -h= -l= -p --body-numbering= --number-format= --number-width="),
    "od": Program(
        "-a -b -c -d -o -s -x -v -A= -j= -N= -t= -w --address-radix= --skip-bytes= --read-bytes= --format="
    ),
    "paste": Program("-d= -s -z --delimiters= --serial --zero-terminated"),
    "printf": Program(operands="text"),
    "pwd": Program("-L -P", operands="none"),
    "pytest": Program(
        "-q -v -x -s -l -r= -k= -m= --quiet --verbose --exitfirst --maxfail= --lf --ff --last-failed --failed-first "
        "--nf --sw --tb= --durations= --co --collect-only --no-header --no-summary --color= --showlocals --strict "
        "--strict-markers --strict-config --capture= --markers --fixtures --version --runxfail --cache-show",
        runs_folder=True,
        reads_here=True,
    ),
    "readlink": Program("-e -f -m -n -q -s -v -z --canonicalize --canonicalize-existing --no-newline"),
    "realpath": Program("-e -m -L -P -q -s -z --canonicalize-existing --canonicalize-missing --relative-to="),
    "rev": Program(),
    "rg": Program(
        "-a -c -e= -E= -F -g= -h -H -i -I -l -m= -M= -n -N -o -p -P -q -r= -s -S -t= -T= -U -v -V -w -x -A= -B= -C= "
        "-d= -j= -0 --after-context= --before-context= --context= --color= --colors= --column --count "
        "--count-matches --case-sensitive --ignore-case --smart-case --files --files-with-matches "
        "--files-without-match --fixed-strings --glob= --iglob= --heading --no-heading --invert-match --json "
        "--line-number --no-line-number --line-regexp --max-columns= --max-count= --max-depth= --max-filesize= "
        "--multiline --multiline-dotall --no-config --no-filename --no-messages --null --only-matching --passthru "
        "--pcre2 --pretty --quiet --regexp= --replace= --sort= --sortr= --stats --text --threads= --trim --type= "
        "--type-not= --type-list --version --vimgrep --with-filename --word-regexp",
        operands="pattern",
        reads_here=True,
        reads_below="*",
    ),
    "sed": Program("-n -E -r -s -u -z --quiet --silent --regexp-extended --separate --unbuffered", operands="script"),
    "seq": Program("-f= -s= -w --format= --separator= --equal-width", operands="text", number=True),
    "sha1sum": Program(_SUMS),
    "sha256sum": Program(_SUMS),
    "sha512sum": Program(_SUMS),
    "sleep": Program(operands="text"),
    "sort": Program(
        "-b -c -C -d -f -g -h -i -k= -M -m -n -r -R -s -t= -u -V -z --ignore-leading-blanks --dictionary-order "
        "--ignore-case --general-numeric-sort --human-numeric-sort --ignore-nonprinting --key= --month-sort "
        "--numeric-sort --reverse --random-sort --sort= --stable --field-separator= --unique --version-sort "
        "--zero-terminated --check --merge"
    ),
    "stat": Program("-c= -f -L -t -x --format= --printf= --terse --file-system --dereference"),
    "tac": Program("-b -r -s= --before --regex --separator="),
    "tail": Program(
        "-c= -f -F -n= -q -r -s= -v -z --bytes= --follow --follow= --lines= --pid= --quiet --silent --retry "
        "--sleep-interval= --verbose --zero-terminated",
        number=True,
    ),
    "tr": Program("-c -C -d -s -t --complement --delete --squeeze-repeats --truncate-set1", operands="text"),
    "true": Program(operands="text"),
    "uname": Program("-a -s -n -r -v -m -p -i -o --all --kernel-name --kernel-release --machine", operands="none"),
    # The second operand would be the file it writes to.
    "uniq": Program(
        "-c -d -D -i -u -z -f= -s= -w= --count --repeated --ignore-case --unique --skip-fields= --skip-chars= "
        "--check-chars= --zero-terminated",
        operands_max=1,
    ),
    "wc": Program("-c -m -l -L -w --bytes --chars --lines --max-line-length --words --total="),
    "which": Program("-a -s --all", operands="text"),
    "whoami": Program(operands="none"),
}
# `10,20p` and the like: every other command of sed may write (`w`), run (`e`) or read another file (`r`).
_SCRIPT = re.compile(r"[0-9]+(?:,(?:\+?[0-9]+|\$))?p(?:; ?[0-9]+(?:,(?:\+?[0-9]+|\$))?p)*|\$p|\$=|=")
_SIGNATURE = re.compile(r"%[-+ ]?G")  # `%+GG` is `%GG` on a line of its own
_NUMBER = re.compile(r"-[0-9]{1,9}")
_BLOB = re.compile(r"[\w./~^-]*:(?:[0-3]:)?[\w.-][\w./ -]*")  # REVISION:PATH; `:/word` and `:!path` are none


def files_of(argv: Sequence[Word]) -> list[File]:
    """What a command reads, if that is all it does. Raises Unknown."""
    name, literal = argv[0]
    program = PROGRAMS.get(name) if literal else None
    words = list(argv[1:])
    if name == "git" and literal:
        name = f"git {words[0][0]}" if words else name
        program = _GIT.get(words[0][0]) if words and words[0][1] else None
        words = words[1:]
    if program is None:
        raise Unknown(f"`{name[:80]}` is not known to be harmless")
    taken = _Taken(name, program, words)
    extent: Extent = (
        "anywhere" if program.follows else "below" if taken.below else "folders" if taken.lists else "itself"
    )
    files: list[File] = [(path, literal, extent) for path, literal in taken.files]
    if name.startswith("git "):  # it looks at the repository around it, whatever it is asked for
        files += [(path.partition(":")[2], literal, extent) for path, literal in taken.files if ":" in path]
        files.append((".", True, _extent_of_git(name.removeprefix("git "), taken)))
    elif not files and (program.reads_here or taken.below):
        files.append((".", True, extent))
    return files


def _extent_of_git(command: str, taken: "_Taken") -> Extent:
    """What it shows of files: nothing, what git keeps now, or what it ever kept."""
    match command:
        case "show" | "cat-file":  # of one file, its name is judged
            named = taken.files and all(_BLOB.fullmatch(path) for path, _ in taken.files)
            return "tracked" if named else "past"
        case "log":
            return "past" if taken.options - _TELLS else "itself"
        case "diff":
            return (
                "past" if taken.revisions or taken.options & {"--cached", "--staged", "--merge-base"} else "tracked"
            )
        case "grep":
            return "past" if taken.revisions else "tracked"
    return "tracked" if command in _SHOWS else "itself"


def knows(words: Sequence[str]) -> bool:
    """Whether the table has anything to say about commands that begin with these words."""
    program, *rest = words
    return program in PROGRAMS and (program != "git" or not rest or rest[0] in _GIT)


def runs_folder(name: str) -> bool:
    """Whether to allow this program is to allow programs that lie in the working directory."""
    return name not in PROGRAMS or PROGRAMS[name].runs_folder


class _Taken:
    """The words of a command, each taken for what the table says that it is."""

    def __init__(self, name: str, program: Program, words: Sequence[Word]) -> None:
        self._name = name
        self._program = program
        self._options = frozenset(program.options.split())
        self.below = program.reads_below == "*"
        self.lists = program.lists_below == "*"
        self.options: set[str] = set()  # each without its value
        self.revisions = False  # operands that no `--` says are files
        self._option_at = ""  # the last one
        self._more: list[Word] = []  # files that options name
        self.files: list[Word] = []
        operands = self._operands(words)
        most = 0 if program.operands == "none" else program.operands_max
        if most is not None and len(operands) > most:
            raise Unknown(f"`{operands[most][0][:80]}` is more than `{name}` is known to be harmless with")
        self._take(operands)

    def _operands(self, words: Sequence[Word]) -> list[Word]:
        """What is no option, and no value of one. Options may stand anywhere, as GNU's tools see it."""
        operands: list[Word] = []
        left = list(words)
        plain = 0  # of them that stand before a `--`
        self._pattern_given = False
        while left:
            text, literal = left.pop(0)
            if text == "--" and literal:
                plain, operands = len(operands), operands + left
                break
            if not literal and text[:1] in ("*", "?"):
                raise Unknown(f"`{text[:80]}` may stand for an option: write `./{text[:80]}`")
            if text.startswith("-") and text != "-":
                if not literal:
                    raise Unknown(f"`{text[:80]}` stands for an option that cannot be told")
                if self._option(text):
                    if not left:
                        raise Unknown(f"`{text[:80]}` lacks its value")
                    self._value(left.pop(0))
            else:
                operands.append((text, literal))
                plain = len(operands)
        pattern = self._program.operands == "pattern" and not self._pattern_given
        self.revisions = plain > int(pattern)
        return operands

    def _option(self, text: str) -> bool:
        """Whether its value is the next word."""
        name, given, value = text.partition("=")
        if text in self._options:
            self._note(text)
            return False
        if not self._program.clusters or text.startswith("--"):
            if f"{name}=" in self._options:
                self._note(name)
                if given:
                    self._value((value, True))
                return not given
        elif self._program.number and _NUMBER.fullmatch(text):
            return False
        else:
            return self._cluster(text)
        raise Unknown(f"`{self._name} {text[:80]}` is not known to be harmless")

    def _cluster(self, text: str) -> bool:
        for at, letter in enumerate(text[1:], 2):
            self._note(f"-{letter}")
            if f"-{letter}=" in self._options:
                if text[at:]:
                    self._value((text[at:], True))
                return not text[at:]
            if f"-{letter}" not in self._options:
                raise Unknown(f"`{self._name} {text[:80]}` is not known to be harmless")
        return False

    def _note(self, option: str) -> None:
        self.options.add(option)
        self._option_at = option
        self.below = self.below or option in self._program.reads_below.split()
        self.lists = self.lists or option in self._program.lists_below.split()
        self._pattern_given = self._pattern_given or option in ("-e", "--regexp", "--files", "--type-list")

    def _value(self, word: Word) -> None:
        """One that begins with a dash may be an option, should the table be wrong about the one before it."""
        text, literal = word
        if not literal or (text.startswith("-") and not _NUMBER.fullmatch(text)):
            raise Unknown(f"`{text[:80]}` may stand for an option")
        self._check_argument(text)
        if self._option_at == "-L":  # git's, of lines: 10,20:PATH
            self._more.append((text.rpartition(":")[2], literal))
        signature = "signature" in text if self._name == "git for-each-ref" else _SIGNATURE.search(text)
        if signature and self._name.startswith("git "):
            raise Unknown(f"`{text[:80]}` has git start another program, to check signatures")

    def _take(self, operands: list[Word]) -> None:
        match self._program.operands:
            case "text":
                return
            case "pattern" if operands and not self._pattern_given:
                operands = operands[1:]
            case "script":
                script = operands[0][0] if operands and operands[0][1] else ""
                if not _SCRIPT.fullmatch(script):
                    raise Unknown(f"the script of `{self._name}` is not known to be harmless")
                operands = operands[1:]
            case "format":  # anything else would set the clock
                if any(not text.startswith("+") for text, _ in operands):
                    raise Unknown(f"`{self._name} {operands[0][0][:80]}` is not known to be harmless")
                return
        for text, _ in operands:
            self._check_argument(text)
        self.files = [*(operand for operand in operands if operand[0] != "-"), *self._more]

    def _check_argument(self, text: str) -> None:
        """`@FILE`, wherever it stands, is what is in the file to those that read their arguments with Python."""
        if self._program.runs_folder and text.startswith("@"):
            raise Unknown(f"`{self._name}` would take its arguments from a file")
