"""Finding one whole record on a Reverb server, which draws but never looks up.

The table ``records`` hands out its item of highest priority. New items have their number as priority: so the newest comes
first, tells its key, and sinks. An item whose key is known is raised above all others, read, and sinks again. After a restart
nobody knows a key any more: so items sink lower than all that sank before, and those of earlier times come up again.
Each record is thus read once before it can be looked up, and from then on in one draw.
"""

from __future__ import annotations

import time
from collections import OrderedDict

from buffers.records import Record, RecordSpec
from buffers.reverb_items import record_of
from buffers.reverb_ledger import Ledger
from buffers.reverb_link import ReverbLink, Sampled
from buffers.reverb_tables import SERIAL, stored_row_bytes, whole_columns

CACHE_BYTES = 64_000_000
"""Records read last that this process keeps: imagination starts again and again from the newest ones."""
ABOVE_ALL = 2.0**53


class Finder:
    """Of one buffer. Callers give the ledger and the link, which change when a server is restarted or loaded."""

    def __init__(self, spec: RecordSpec, table: str) -> None:
        self._spec, self._table = spec, table
        self._keys: dict[int, int] = {}
        """Serial number to Reverb's key."""
        self._cache: OrderedDict[int, Record] = OrderedDict()
        """By serial number."""
        self._bytes = 0
        self._bottom = _bottom()
        """Priority of the items whose key is known."""

    def find(self, key: int, ledger: Ledger, link: ReverbLink) -> Record | None:
        """The record, not to be changed; None when the server has lost it."""
        serial = ledger.serial(key)
        if (record := self._cache.get(serial)) is not None:
            self._cache.move_to_end(serial)
            return record
        while serial not in self._keys:
            if not link.info()[self._table].current_size:
                return None
            sampled = self._top(link)
            if self._serial(sampled) in self._keys:
                # The highest of all is one that sank, so every item has told its key.
                return None
            record = self._learn(sampled, ledger, link)
            if record is not None and self._serial(sampled) == serial:
                return record
        link.mutate(self._table, {self._keys[serial]: ABOVE_ALL})
        sampled = self._top(link)
        if self._serial(sampled) != serial:
            del self._keys[serial]
            return None
        return self._learn(sampled, ledger, link)

    def forget(self, serial: int) -> None:
        """A record counts no longer."""
        self._keys.pop(serial, None)
        if (record := self._cache.pop(serial, None)) is not None:
            self._bytes -= self._cost(record)

    def forget_keys(self) -> None:
        """Another server: its priorities are those of its checkpoint."""
        self._keys.clear()
        self._bottom = _bottom()

    def _top(self, link: ReverbLink) -> Sampled:
        return link.sample(self._table, 1)[0]

    def _learn(self, sampled: Sampled, ledger: Ledger, link: ReverbLink) -> Record | None:
        serial = self._serial(sampled)
        key = ledger.find(serial)
        if key is None:
            link.mutate(self._table, {}, [sampled[0].key])
            return None
        link.mutate(self._table, {sampled[0].key: self._bottom})
        self._keys[serial] = sampled[0].key
        record = record_of(self._spec, ledger.items[key], sampled)
        self._cache[serial] = record
        self._bytes += self._cost(record)
        while self._bytes > CACHE_BYTES and len(self._cache) > 1:
            self._bytes -= self._cost(self._cache.popitem(last=False)[1])
        return record

    def _serial(self, sampled: Sampled) -> int:
        return int(sampled[1][whole_columns(self._spec).index(SERIAL)][0])

    def _cost(self, record: Record) -> int:
        return (record.length + 1) * stored_row_bytes(self._spec)


def _bottom() -> float:
    """Below that of any time before."""
    return 1.0 / time.time()
