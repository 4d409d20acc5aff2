"""The Debian packages the corpus comes from, and where in each of them which language lies."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

Kind = Literal["tags", "man", "message_json", "mo", "pak", "langpack"]


@dataclass(frozen=True)
class Source:
    """A package, its licence, and the files to read from it.

    `pattern` is searched in each path; its group is the locale (English where it is absent).
    """

    package: str
    licence: str
    kind: Kind
    pattern: re.Pattern[str]


def _group(names: str, languages: str, licence: str, kind: Kind, pattern: str) -> list[Source]:
    compiled = re.compile(pattern)
    return [
        Source(names.format(code), licence, kind, compiled) for code in (languages.split() or [""])
    ]


_MAN = "GPL-3+ for the translations, free licences page by page for the originals"
_MAN_EN = "Linux-man-pages-copyleft, GPL-1+, GPL-2+, BSD and Expat, page by page"
_FIREFOX = "en-gb bn gu-in hi-in kn mr ne-np pa-in si ta te ur zh-cn zh-tw my be bg mk sr hr bs"
_EDU = "da de en es fr it nb-no nl pt-br pt-pt zh-cn"

SOURCES: tuple[Source, ...] = (
    *_group(
        "libreoffice-help-{}",
        "en-us fr es pt-br it ca gl de nl da sv ru pl cs sl zh-cn zh-tw dz hi",
        "MPL-2.0",
        "tags",
        r"/libreoffice/help/([\w-]+)/text/.*\.html$",
    ),
    *_group("chromium-l10n", "", "BSD-3-Clause", "pak", r"/locales/([\w-]+)\.pak$"),
    *_group("gnome-user-docs", "", "CC-BY-SA-3.0", "tags", r"/help/([^/]+)/.*\.page$"),
    *_group(
        "debian-handbook",
        "",
        "CC-BY-SA-3.0 or GPL-2+",
        "tags",
        r"/debian-handbook/html/([\w-]+)/.*\.html$",
    ),
    *_group(
        "installation-guide-amd64",
        "",
        "GPL-2",
        "tags",
        r"/installation-guide-amd64/(\w+)/.*\.html$",
    ),
    *_group(
        "manpages-{}",
        "de es fr it nl pl pt-br ro cs da nb sv ru uk sr mk",
        _MAN,
        "man",
        r"/man/([\w@]+)(?:\.UTF-8)?/man\d/.*\.gz$",
    ),
    *_group(
        "manpages-{}-dev",
        "de es fr it nl pl pt-br cs da ru uk",
        _MAN,
        "man",
        r"/man/([\w@]+)(?:\.UTF-8)?/man\d/.*\.gz$",
    ),
    *_group(
        "manpages-zh",
        "",
        "GFDL-1.2+, GPL-2+, public domain, page by page",
        "man",
        r"/man/([\w@]+)(?:\.UTF-8)?/man\d/.*\.gz$",
    ),
    *_group("manpages", "", _MAN_EN, "man", r"/man()/man\d/.*\.gz$"),
    *_group("manpages-dev", "", _MAN_EN, "man", r"/man()/man\d/.*\.gz$"),
    *_group("mediawiki", "", "GPL-2+", "message_json", r"/i18n/(?:.*/)?([\w-]+)\.json$"),
    *_group("wesnoth-1.16-data", "", "GPL-2+", "mo", r"/([\w@]+)/LC_MESSAGES/.*\.mo$"),
    *_group(
        "wordpress-l10n",
        "",
        "GPL-2+",
        "mo",
        r"/languages/(?:admin-(?:network-)?)?([a-z]{2,3}(?:_[A-Z]{2})?)\.mo$",
    ),
    *_group(
        "libreoffice-l10n-{}",
        "dz bn gu hi kn ml mr ne or pa-in si ta te zh-cn zh-tw as",
        "MPL-2.0",
        "mo",
        r"/resource/([\w@-]+)/LC_MESSAGES/.*\.mo$",
    ),
    *_group("krita-l10n", "", "GPL-2+", "mo", r"/([\w@]+)/LC_MESSAGES/.*\.mo$"),
    *_group("firefox-esr-l10n-{}", _FIREFOX, "MPL-2.0", "langpack", r"/langpack-([\w-]+)@.*\.xpi$"),
    *_group(
        "gimp-help-{}",
        "en nn hr uk zh-cn",
        "GFDL-1.2+",
        "tags",
        r"/gimp/2\.0/help/(\w+)/.*\.html$",
    ),
    *_group(
        "debian-reference-{}",
        "en de es fr it pt pt-br zh-cn zh-tw",
        "GPL-2+",
        "tags",
        r"/debian-reference/[^/]*\.([a-z]\w(?:-\w+)?)\.html$",
    ),
    *_group(
        "debian-edu-doc-{}", _EDU, "GPL-2+", "tags", r"/debian-edu-doc-([\w-]+)/.*manual\.html$"
    ),
    *_group(
        "debian-edu-doc-legacy-{}",
        "pl uk sv zh-cn",
        "GPL-2+",
        "tags",
        r"/debian-edu-doc-legacy-([\w-]+)/.*manual\.html$",
    ),
    *_group(
        "maint-guide-{}",
        "ca de es fr it ru zh-cn zh-tw",
        "GPL-2+",
        "tags",
        r"/html/[^/]*\.([a-z]\w(?:-\w+)?)\.html$",
    ),
    *_group(
        "developers-reference-{}",
        "de fr it ru",
        "GPL-2+",
        "tags",
        r"/developers-reference/(\w+)/.*\.html$",
    ),
    *_group(
        "aptitude-doc-{}", "cs es fr it nl ru", "GPL-2+", "tags", r"/aptitude/html/(\w+)/.*\.html$"
    ),
)
