"""A Chromium of this machine: found, and started under the guard with nothing of ours and no way out but a proxy.

It is spoken to over two pipes (`--remote-debugging-pipe`), so there is no port that others could connect to. It reads
from descriptor 3 and writes to 4; a shell's redirection puts them there and gives way to it. Its profile is a folder
of its own, with home and temporary files in it, that goes when it ends; one that a killed worker left is removed
before the next browser starts: nobody holds its lock any more.
"""

import asyncio
import fcntl
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from holdfast.errors import ToolFailed
from holdfast.system import processes
from holdfast.system.cover import ProcessSpec
from holdfast.system.processes import Children
from holdfast.system.threads import Pool

VARIABLE = "HOLDFAST_BROWSER"
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
INSTALL = (
    "Install Chromium (Debian, Ubuntu: apt install chromium; macOS: brew install --cask chromium), or name one: "
    f"{VARIABLE}=/path/to/chrome"
)
PROFILE_PREFIX = "holdfast-browser-"
LOCK = "lock"
FOLDER_CHARS_MAX = 32  # of where profiles are: Chromium has a socket in its own, and a socket's path is short
LEFT_MAX = 100  # folders of killed workers that are looked at
WIDTH, HEIGHT = 1280, 900
_MAC = "/Applications/Chromium.app/Contents/MacOS/Chromium"
# Where the system runs out of memory, a browser goes before its worker.
_TRAMPOLINE = '(echo 900 >/proc/$$/oom_score_adj) 2>/dev/null; exec "$@" 3<&0 4>&1 </dev/null >/dev/null'
# By which it would hand something to another program. It finds these, which do nothing.
_OPENERS = ("xdg-open", "xdg-email", "xdg-mime", "xdg-settings")

# What would look for something in the network, or keep something, that no call asked for.
_QUIET = (
    "--headless=new",
    "--no-first-run",
    "--no-default-browser-check",
    "--disable-background-networking",
    "--disable-background-timer-throttling",
    "--disable-backgrounding-occluded-windows",
    "--disable-renderer-backgrounding",
    "--disable-breakpad",
    "--disable-client-side-phishing-detection",
    "--disable-component-extensions-with-background-pages",
    "--disable-component-update",
    "--disable-crash-reporter",
    "--disable-default-apps",
    "--disable-dev-shm-usage",
    "--disable-domain-reliability",
    "--disable-extensions",
    "--disable-features=AutofillServerCommunication,CertificateTransparencyComponentUpdater,DialMediaRouteProvider,"
    "InterestFeedContentSuggestions,MediaRouter,OptimizationHints,Translate,HttpsUpgrades,WebRtcHideLocalIpsWithMdns",
    "--disable-gpu",
    "--disable-gpu-watchdog",  # between two calls nothing runs, and that is no fault
    "--disable-hang-monitor",
    "--disable-notifications",
    "--disable-print-preview",
    "--disable-sync",
    "--deny-permission-prompts",
    "--hide-scrollbars",
    "--metrics-recording-only",
    "--mute-audio",
    "--no-pings",
    "--no-service-autorun",
    "--password-store=basic",
    "--use-mock-keychain",
    "--disk-cache-size=33554432",
    "--media-cache-size=1048576",
    "--js-flags=--max-old-space-size=512",
    f"--window-size={WIDTH},{HEIGHT}",
)
# Nothing but a proxy: not for loopback either, no other protocol, and no name is looked up here. That of pages is
# told to their context (`page.py`); what the browser wants for itself (updates, accounts) gets one where nobody is.
_ONLY_PROXY = (
    "--proxy-server=http://127.0.0.1:1",
    "--proxy-bypass-list=<-loopback>",
    "--disable-quic",
    "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
    "--dns-prefetch-disable",
)

# There is no switch for these. Calls between browsers (WebRTC) would use UDP, which no proxy carries. And what
# is no page would be handed to another program (mailto:), or to a window that asks a person and takes all clicks.
_PREFERENCES = msgspec.json.encode(
    {
        "webrtc": {"ip_handling_policy": "disable_non_proxied_udp"},
        "policy": {
            "url_blocklist": ["*"],
            "url_allowlist": [f"{scheme}*" for scheme in ("http://", "https://", "about:", "data:", "blob:")],
        },
    }
)


def find_program(named: str | None) -> str:
    """Raises ToolFailed that says what to install."""
    wanted = named or os.environ.get(VARIABLE, "").strip()
    search_path = processes.environment()["PATH"]
    for name in (wanted,) if wanted else (*NAMES, _MAC):
        if found := shutil.which(name, path=search_path):
            return found
    where = f"{wanted!r} is not a program" if wanted else f"none of {', '.join(NAMES)} is on the PATH"
    raise ToolFailed(f"there is no Chromium here: {where}. {INSTALL}.")


def profiles_folder() -> Path:
    folder = tempfile.gettempdir()
    return Path(folder if len(folder) <= FOLDER_CHARS_MAX else "/tmp")


class Profile:
    """A folder that only we use, and its lock."""

    def __init__(self) -> None:
        self._removing = threading.Lock()
        self._lock: int | None
        self.path, self._lock = _locked_folder()
        for name in ("home", "bin"):
            (self.path / name).mkdir(mode=0o700)
        for opener in _OPENERS:
            (self.path / "bin" / opener).symlink_to(shutil.which("false") or "/bin/false")
        default = self.path / "profile" / "Default"
        default.mkdir(parents=True, mode=0o700)
        (default / "Preferences").write_bytes(_PREFERENCES)

    @property
    def environment(self) -> dict[str, str]:
        """No program of this desktop is found by name, nor by its bus."""
        known = processes.environment({"HOME": f"{self.path}/home", "TMPDIR": str(self.path)})
        return {**known, "PATH": f"{self.path}/bin:{known['PATH']}", "DBUS_SESSION_BUS_ADDRESS": "disabled:"}

    def remove(self) -> None:
        """Once: a second caller waits for the first."""
        with self._removing:
            if self._lock is not None:
                _remove(self.path)
                os.close(self._lock)
                self._lock = None


def _locked_folder() -> tuple[Path, int]:
    """Between its making and its lock another process may take it for one that was left."""
    while True:
        path = Path(tempfile.mkdtemp(prefix=PROFILE_PREFIX, dir=profiles_folder()))
        with suppress(FileNotFoundError):
            lock = os.open(path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(lock, fcntl.LOCK_EX)  # for as long as it takes to see that it is ours, or to remove it
            if os.fstat(lock).st_nlink:
                return path, lock
            os.close(lock)


def _remove(path: Path) -> None:
    """The lock goes last: who is killed before that leaves what the next one removes."""
    with suppress(OSError):
        for entry in path.iterdir():
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry, ignore_errors=True)
    shutil.rmtree(path, ignore_errors=True)


async def new_profile() -> Profile:
    """What killed workers left goes first, off the event loop. To make one is quick: nothing is left of one that no
    caller waits for any more.
    """
    await _off_the_loop(_remove_left)
    return Profile()


async def remove_profile(profile: Profile) -> None:
    """It is gone afterwards, also for a caller that is cancelled, as when the event loop ends."""
    try:
        await _off_the_loop(profile.remove)
    except asyncio.CancelledError:
        profile.remove()
        raise


async def _off_the_loop(work: Callable[[], None]) -> None:
    """In a thread that ends with it: browsers come and go seldom."""
    files = Pool("browser-files", 1)
    try:
        await files.run(lambda _: work())
    finally:
        files.stop()


def _remove_left() -> None:
    folder = profiles_folder()
    with suppress(OSError), os.scandir(folder) as entries:
        left = [entry.name for entry in entries if entry.name.startswith(PROFILE_PREFIX)][:LEFT_MAX]
        for name in left:
            _remove_if_left(folder / name)


def _remove_if_left(path: Path) -> None:
    with suppress(OSError):
        if path.lstat().st_uid != os.geteuid() or path.is_symlink():
            return
        lock = os.open(path / LOCK, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # held: its worker lives
            _remove(path)
        finally:
            os.close(lock)


class Pipes:
    """Ours of the two pipes, and of what it says on standard error."""

    def __init__(self, commands: int, answers: int, errors: int) -> None:
        self.commands, self.answers, self.errors = commands, answers, errors


async def start(program: str, profile: Profile, children: Children | None) -> tuple[processes.Child, Pipes]:
    """Raises ToolFailed."""
    arguments = [
        program,
        "--remote-debugging-pipe",
        f"--user-data-dir={profile.path}/profile",
        *_ONLY_PROXY,
        *_QUIET,
        *(["--no-sandbox"] if os.geteuid() == 0 else []),  # it refuses to start as root with it
        "about:blank",
    ]
    with _pipes() as (theirs, ours):
        spec = ProcessSpec(
            ["/bin/sh", "-c", _TRAMPOLINE, "sh", *arguments], profile.environment, profile.path, *theirs
        )
        try:
            return await processes.start_covered(spec, children=children), ours
        except OSError as error:
            raise ToolFailed(f"{program} cannot be started: {error.strerror or error}. {INSTALL}.") from error


@contextmanager
def _pipes() -> Iterator[tuple[tuple[int, int, int], Pipes]]:
    """Theirs are closed in the end; ours, too, if it fails."""
    read_in, write_in = os.pipe()
    read_out, write_out = os.pipe()
    read_error, write_error = os.pipe()
    try:
        yield (read_in, write_out, write_error), Pipes(write_in, read_out, read_error)
    except BaseException:
        for fd in (write_in, read_out, read_error):
            os.close(fd)
        raise
    finally:
        for fd in (read_in, write_out, write_error):
            os.close(fd)
