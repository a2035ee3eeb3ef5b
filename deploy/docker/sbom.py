"""Write what an image holds: sbom.cdx.json (CycloneDX 1.6) and licenses/, at the image's build.

python sbom.py FOLDER

Components are the packages that the running Python sees, and Debian's, if /var/lib/dpkg has them.
Licences of the former are what their metadata say, and the texts that they bring are copied to
FOLDER/licenses/NAME-VERSION/; those of Debian's packages stay in /usr/share/doc/NAME/copyright.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from email.parser import Parser
from importlib.metadata import Distribution, distributions
from pathlib import Path
from urllib.parse import quote

DPKG = Path("/var/lib/dpkg/status")
_TEXTS = ("LICENSE", "LICENCE", "COPYING", "NOTICE", "AUTHORS")


def licence(package: Distribution) -> str:
    """What its metadata say: the expression, the classifiers or the field; empty: nothing."""
    said = package.metadata
    if expression := said.get("License-Expression"):
        return str(expression)
    classifiers = [
        str(it).rpartition(" :: ")[2]
        for it in said.get_all("Classifier") or ()
        if it.startswith("License :: ")
    ]
    names = [it for it in classifiers if it != "OSI Approved"]
    # Some packages write the whole text into the field.
    return " AND ".join(names) or str(said.get("License") or "").strip().partition("\n")[0]


def texts(package: Distribution) -> Iterator[Path]:
    """Files of licences and notices that a package installs as such."""
    for file in package.files or ():
        inside = file.parts[0].endswith((".dist-info", ".egg-info"))
        if inside and file.name.upper().startswith(_TEXTS):
            path = Path(str(package.locate_file(file)))
            if path.is_file():
                yield path


def python_component(package: Distribution) -> dict[str, object]:
    """The component of a Python package."""
    name, version = package.metadata["Name"], package.version
    component: dict[str, object] = {
        "type": "library",
        "name": name,
        "version": version,
        "purl": f"pkg:pypi/{name.lower().replace('_', '-')}@{quote(version)}",
    }
    component["bom-ref"] = component["purl"]
    if said := licence(package):
        component["licenses"] = [{"license": {"name": said}}]
    return component


def debian_component(fields: Mapping[str, str]) -> dict[str, object]:
    """The component of a Debian package, from its entry in dpkg's status."""
    purl = (
        f"pkg:deb/debian/{quote(fields['Package'])}@{quote(fields['Version'])}"
        f"?arch={fields['Architecture']}"
    )
    return {
        "type": "library",
        "name": fields["Package"],
        "version": fields["Version"],
        "purl": purl,
        "bom-ref": purl,
    }


def main(folder: Path) -> None:
    packages = sorted(
        {it.metadata["Name"].lower(): it for it in reversed(list(distributions()))}.items()
    )
    components = [python_component(package) for _, package in packages]
    if DPKG.exists():
        entries = DPKG.read_text("utf-8").split("\n\n")
        installed = [dict(Parser().parsestr(entry).items()) for entry in entries if entry.strip()]
        components += [debian_component(it) for it in installed if "Version" in it]
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": {"type": "container", "name": "outrider"}},
        "components": components,
    }
    for _, package in packages:
        target = folder / "licenses" / f"{package.metadata['Name']}-{package.version}"
        for number, path in enumerate(texts(package)):
            target.mkdir(parents=True, exist_ok=True)
            # Two files of one name lie in different folders of the package.
            name = path.name if not (target / path.name).exists() else f"{number}-{path.name}"
            (target / name).write_bytes(path.read_bytes())
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "sbom.cdx.json").write_text(json.dumps(document, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
