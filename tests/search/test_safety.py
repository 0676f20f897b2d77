"""Which addresses are fetched: expectations by hand, from the registries of special addresses."""

import asyncio

import pytest

from carr_jax.search.safety import CheckedResolver, Refused, Rules, checked, is_public

PUBLIC = ["8.8.8.8", "93.184.216.34", "1.1.1.1", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808"]
PRIVATE = """0.0.0.0 0.1.2.3 10.0.0.1 100.64.0.1 127.0.0.1 127.9.9.9 169.254.169.254 172.16.0.1 172.31.255.255
192.0.0.1 192.0.2.1 192.168.1.1 192.88.99.1 198.18.0.1 203.0.113.5 224.0.0.1 239.255.255.250 240.0.0.1
255.255.255.255 ::1 :: ::ffff:127.0.0.1 ::ffff:10.0.0.1 ::ffff:100.64.0.1 ::127.0.0.1 64:ff9b::7f00:1
64:ff9b::a00:1 64:ff9b:1::808:808 2002:7f00:1:: 2002:808:808:: 2001:0:7f00:1::1 2001:db8::1 fe80::1 fe80::1%eth0
fc00::1 fd12:3456::1 fec0::1 ff02::1""".split()


@pytest.mark.parametrize("address", PUBLIC)
def test_public_addresses(address):
    assert is_public(address)


@pytest.mark.parametrize("address", PRIVATE)
def test_addresses_that_are_never_fetched(address):
    assert not is_public(address)


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "2130706433", "0x7f000001", "0177.0.0.1", "0x7f.1", "127.1", "127.0.0.1.", "0", "[::1]"]
    + ["[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "10.1", "169.254.169.254", "[fe80::1]", "0XA000001"]
    + ["999.1.1.1", "4294967296", "127.0.0.0x1"],
)
def test_spellings_of_private_addresses_are_refused_before_any_connection(host):
    """TS-02: decimal, octal, hex and short spellings, and IPv4 in IPv6."""
    with pytest.raises(Refused, match="private"):
        checked(f"http://{host}/", Rules())


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("file:///etc/passwd", "scheme"),
        ("ftp://example.com/", "scheme"),
        ("javascript:alert(1)", "scheme"),
        ("//example.com/", "scheme"),
        ("http://", "scheme"),
        ("http://[::1", "scheme"),
        ("3", "scheme"),
        ("http://user@example.com/", "userinfo"),
        ("http://8.8.8.8@127.0.0.1/", "userinfo"),
        ("http://example.com:22/", "port"),
        ("https://example.com:8443/", "port"),
    ],
)
def test_what_is_no_address_of_the_web(url, reason):
    with pytest.raises(Refused) as refused:
        checked(url, Rules())
    assert refused.value.reason == reason


def test_addresses_of_the_web_pass():
    for url in (
        "http://example.com/",
        "https://example.com:443/a?b",
        "https://8.8.8.8/",
        "https://xn--bcher-kva.ch",
    ):
        assert checked(url, Rules()).hostname
    assert checked("http://deadbeef/", Rules()).hostname == "deadbeef"  # a name: the resolver looks behind it
    assert checked("https://example.com:8443/", Rules(ports=frozenset((8443,)))).port == 8443


def test_hosts_that_are_named_may_be_private_and_no_others():
    rules = Rules(hosts=frozenset(("127.0.0.1", "lab.test")))
    assert checked("http://127.0.0.1:8080/", rules).port == 8080
    with pytest.raises(Refused):
        checked("http://127.0.0.2:8080/", rules)


def resolve(host, *addresses, rules=Rules()):
    async def lookup(name, port):
        return addresses

    found = asyncio.run(CheckedResolver(rules, lookup).resolve(host, 80))
    return [(r["hostname"], r["host"], r["port"]) for r in found]


def test_a_name_is_refused_when_one_of_its_addresses_is_private():
    assert resolve("a.test", "8.8.8.8", "2606:4700::1111") == [
        ("a.test", "8.8.8.8", 80),
        ("a.test", "2606:4700::1111", 80),
    ]
    for addresses in (("8.8.8.8", "10.0.0.1"), ("::ffff:127.0.0.1",), ("127.0.0.1", "8.8.8.8")):
        with pytest.raises(Refused, match="private"):
            resolve("a.test", *addresses)
    assert resolve("Lab.test.", "127.0.0.1", rules=Rules(hosts=frozenset(("lab.test",))))
    with pytest.raises(OSError):
        resolve("a.test")
