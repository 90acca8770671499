"""The window of a prompt that is inserted by another request while it is loaded."""

from __future__ import annotations

from hicache.config import CacheConfig, ExecutorKind, HostConfig, WritePolicy
from hicache.testing.caches.reference import ReferenceAdapter
from hicache.testing.driving.driver import Driver
from hicache.testing.hybrid_model import TINY_MODEL

CONFIG = CacheConfig(
    components=("full", "swa"),
    page_size=1,
    capacity_tokens={"full": 7, "swa": 4},
    sliding_window_size=1,
    model=TINY_MODEL,
    host=HostConfig(
        capacity_tokens={"full": 3, "swa": 3},
        write_policy=WritePolicy.WRITE_THROUGH,
        load_back_threshold_tokens=0,
        executor=ExecutorKind.STEPPED,
    ),
)


def test_a_readable_layer_of_the_window_stays_readable_while_other_prompts_come() -> None:
    adapter = ReferenceAdapter(CONFIG)
    driver = Driver(adapter, CONFIG)
    prompt = driver.key([1])
    driver.put(prompt)
    driver.drain()
    driver.evict("full", 8)
    load = driver.load_back(prompt, driver.match(prompt))
    driver.step()
    (transfer,) = driver.pending()
    for _ in range(2):
        driver.advance(transfer.ticket)
    assert load is not None, "HOST-4: the prompt is on the host alone"
    assert driver.read_ready_layers(load.ticket)["swa"] == 1, "HOST-6: the first layer has moved"
    driver.put(driver.key([1, 2]))
    driver.put(driver.key([7, 7]))
    assert driver.read_ready_layers(load.ticket)["swa"] == 1, "HOST-6: it was readable before"
    driver.drain()
    adapter.close()
