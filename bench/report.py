"""The tables that compare.py prints."""

from __future__ import annotations

import itertools
import statistics
from typing import Any

OURS, WEB, NATIVE = "ours", "ort-web", "native"
Json = dict[str, Any]


def table(rows: list[list[str]]) -> str:
    """Columns padded to their widest cell, the first to the left and the others to the right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join(
        "  ".join(
            cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    )


def ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}" if value < 100 else f"{value:,.0f}"


def mib(value: float | None) -> str:
    return "-" if value is None else f"{value / 2**20:,.1f}"


def times_table(results: list[Json], names: list[str]) -> str:
    pairs = [f"{a}/{b}" for a, b in itertools.combinations(names, 2)]
    rows = [["ms a run", *names, *pairs, *(f"error {name}" for name in names if name != NATIVE)]]
    for r in results:
        ratios = [r["ratios"].get(pair) for pair in pairs]
        rows.append(
            [
                r["id"],
                *(ms(r["peers"].get(name, {}).get("median_ms")) for name in names),
                *("-" if q is None else f"{q['median']:.2f} ({q['low']:.2f}-{q['high']:.2f})" for q in ratios),
                *(_scientific(r["peers"].get(name, {}).get("error")) for name in names if name != NATIVE),
            ]
        )
    if len(results) > 1:
        means = [[r["ratios"][pair]["median"] for r in results if pair in r["ratios"]] for pair in pairs]
        cells = [f"{statistics.geometric_mean(m):.2f}" if m else "-" for m in means]
        rows.append(["geometric mean", *("" for _ in names), *cells, *("" for name in names if name != NATIVE)])
    return table(rows)


def _scientific(value: float | None) -> str:
    return "-" if value is None else f"{value:.0e}"


def first_table(results: list[Json], names: list[str]) -> str:
    rows = [["ms, once", *(f"{name} {what}" for name in names for what in ("create", "first run"))]]
    for r in results:
        peers = [r["peers"].get(name, {}) for name in names]
        rows.append([r["id"], *(ms(peer.get(key)) for peer in peers for key in ("create_ms", "first_ms"))])
    return table(rows)


def memory_table(results: list[Json]) -> str:
    head = ["created ours", "created ort-web", "ours", "ort-web", "ours/ort-web", "peak", "peak/ort-web", "peak/needed"]
    rows = [["MiB", *head]]
    ratios: list[list[float]] = [[], [], []]
    for r in results:
        ours, web = r["peers"].get(OURS, {}), r["peers"].get(WEB, {})
        created = [peer.get("created", {}).get("linear") for peer in (ours, web)]
        linear, whole, peak, needed = ours.get("linear"), web.get("linear"), ours.get("peak"), ours.get("needed")
        shares = [part / of if part and of else None for part, of in ((linear, whole), (peak, whole), (peak, needed))]
        for share, found in zip(shares, ratios, strict=True):
            found += [] if share is None else [share]
        first, *others = ("-" if share is None else f"{share:.2f}" for share in shares)
        rows.append([r["id"], *(mib(part) for part in (*created, linear, whole)), first, mib(peak), *others])
    if len(results) > 1:
        first, *others = (f"{statistics.geometric_mean(found):.2f}" if found else "-" for found in ratios)
        rows.append(["geometric mean", "", "", "", "", first, "", *others])
    return table(rows)


def summary(results: list[Json], over: float = 1.0) -> str:
    """How much faster than onnxruntime-web, for models that take it longer than ``over`` ms."""
    ratios = {
        r["id"]: 1 / r["ratios"][f"{OURS}/{WEB}"]["median"]
        for r in results
        if f"{OURS}/{WEB}" in r["ratios"] and r["peers"][WEB]["median_ms"] > over
    }
    if not ratios:
        return ""
    slowest = min(ratios, key=lambda id: ratios[id])
    return (
        f"models that take onnxruntime-web over {over:g} ms: {len(ratios)}; "
        f"faster here {statistics.geometric_mean(ratios.values()):.2f} "
        f"times (geometric mean), least {ratios[slowest]:.2f} times ({slowest})"
    )
