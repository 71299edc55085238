"""The URL policy, as a table: what is dialled, as what, and what never is."""

from ipaddress import ip_address

import pytest

from connections.refusal import Refusal
from connections.url_policy import MAX_URL_LENGTH, UrlPolicy, check_address, check_url

CLOSED = UrlPolicy()
LOCAL = UrlPolicy.parse("localhost, 127.0.0.1, ::1,10.0.0.0/8 ,Feed.Internal.")

HOSTILE = {
    # Not a URL for a WebSocket
    "": "invalid_url",
    "feed.example.com": "invalid_url",
    "//feed.example.com/": "invalid_url",
    "wss:feed.example.com": "invalid_url",
    "wss:/feed.example.com": "invalid_url",
    "wss://": "invalid_url",
    "wss:///path": "invalid_url",
    "wss://?q": "invalid_url",
    "http://feed.example.com/": "scheme_not_allowed",
    "https://stream.wikimedia.org/v2/stream": "scheme_not_allowed",
    "ftp://feed.example.com/": "scheme_not_allowed",
    "file:///etc/passwd": "scheme_not_allowed",
    "gopher://feed.example.com/": "scheme_not_allowed",
    "javascript://feed.example.com/%0aalert(1)": "scheme_not_allowed",
    "ws://feed.example.com/": "scheme_not_allowed",
    "ws://8.8.8.8/": "scheme_not_allowed",
    "wss+unix://feed.example.com/": "scheme_not_allowed",
    # Characters
    " wss://feed.example.com/ws ": "invalid_url",
    "wss://exa\tmple.com/": "invalid_url",
    "wss://exa\nmple.com/": "invalid_url",
    "wss://example.com/\r\nHost: evil": "invalid_url",
    "wss://example.com/a b": "invalid_url",
    "wss://example.com/\x00": "invalid_url",
    "wss://example.com/\x7f": "invalid_url",
    "wss://example.com/\u2028": "invalid_url",
    "wss://example.com/\u202e": "invalid_url",
    "wss://example.com/\u3000": "invalid_url",
    "wss://example.com/\ud800": "invalid_url",
    "wss://example.com\\@evil.com/": "invalid_url",
    "wss:\\\\example.com/": "invalid_url",
    "wss://example.com/#fragment": "invalid_url",
    "wss://example.com#@evil.com/": "invalid_url",
    "wss://example.com/%zz": "invalid_url",
    "wss://example.com/%": "invalid_url",
    "wss://example.com/?q=%4": "invalid_url",
    # User information
    "wss://user:p%40ss@feed.example.com/": "invalid_url",
    "wss://user@feed.example.com/": "invalid_url",
    "wss://@feed.example.com/": "invalid_url",
    "wss://example.com@127.0.0.1/": "invalid_url",
    "wss://example.com:443@169.254.169.254/": "invalid_url",
    # Ports
    "wss://h.example:0/": "invalid_url",
    "wss://h.example:65536/": "invalid_url",
    "wss://h.example:abc/": "invalid_url",
    "wss://h.example:-1/": "invalid_url",
    "wss://h.example:/": "invalid_url",
    "wss://h.example:443:443/": "invalid_url",
    "wss://h.example:٤٤٣/": "invalid_url",
    "wss://h.example:+443/": "invalid_url",
    # Host names
    "wss://a..b.example/": "invalid_url",
    "wss://.example.com/": "invalid_url",
    "wss://example.com../": "invalid_url",
    "wss://-a.example/": "invalid_url",
    "wss://a-.example/": "invalid_url",
    "wss://exam%70le.com/": "invalid_url",
    "wss://%31%32%37.0.0.1/": "invalid_url",
    "wss://ex*mple.com/": "invalid_url",
    "wss://example.com,evil.com/": "invalid_url",
    "wss://xn--a.example/": "invalid_url",
    "wss://☃.example/": "invalid_url",
    "wss://a\u200db.example/": "invalid_url",
    f"wss://{'a' * 64}.example/": "invalid_url",
    f"wss://{'a.' * 127}example/": "invalid_url",
    "wss://localhost/": "blocked_address",
    "wss://localhost./": "blocked_address",
    "wss://LOCALHOST/": "blocked_address",
    "wss://ｌｏｃａｌｈｏｓｔ/": "blocked_address",
    "wss://a.localhost/": "blocked_address",
    "wss://intranet/": "blocked_address",
    "wss://printer.local/": "blocked_address",
    "wss://metadata.google.internal/": "blocked_address",
    "wss://nas.home.arpa/": "blocked_address",
    # IPv4, in all of its spellings
    "wss://127.0.0.1/": "blocked_address",
    "wss://127.0.0.1./": "blocked_address",
    "wss://127.255.255.254/": "blocked_address",
    "wss://127。0。0。1/": "blocked_address",
    "wss://①②⑦.0.0.1/": "blocked_address",
    "wss://１２７.0.0.1/": "blocked_address",
    "wss://2130706433/": "invalid_url",
    "wss://0x7f000001/": "invalid_url",
    "wss://0X7F.0.0.1/": "invalid_url",
    "wss://0x7f.1/": "invalid_url",
    "wss://0177.0.0.1/": "invalid_url",
    "wss://127.1/": "invalid_url",
    "wss://127.0.1/": "invalid_url",
    "wss://0/": "invalid_url",
    "wss://0x/": "invalid_url",
    "wss://1.2.3.4.5/": "invalid_url",
    "wss://256.1.1.1/": "invalid_url",
    "wss://example.0x7f/": "invalid_url",
    "wss://0.0.0.0/": "blocked_address",
    "wss://10.0.0.1/": "blocked_address",
    "wss://172.16.0.1/": "blocked_address",
    "wss://192.168.1.1/": "blocked_address",
    "wss://100.64.0.1/": "blocked_address",
    "wss://169.254.169.254/latest/meta-data/": "blocked_address",
    "wss://169.254.170.2/v2/credentials": "blocked_address",
    "wss://169.254.170.23/": "blocked_address",
    "wss://192.0.0.8/": "blocked_address",
    "wss://192.0.2.1/": "blocked_address",
    "wss://192.88.99.1/": "blocked_address",
    "wss://198.18.0.1/": "blocked_address",
    "wss://224.0.0.1/": "blocked_address",
    "wss://240.0.0.1/": "blocked_address",
    "wss://255.255.255.255/": "blocked_address",
    # Characters that mapping removes, or turns into dots, digits or separators
    "wss://loca\ufe00lhost/": "blocked_address",
    "wss://loca\u034flhost/": "blocked_address",
    "wss://127.0.0.1\ufe00/": "blocked_address",
    "wss://foo.ｌocal/": "blocked_address",
    "wss://example。/": "blocked_address",
    "wss://₁₂₇.0.0.1/": "blocked_address",
    "wss://0𝗑7f000001/": "invalid_url",
    "wss://۱۲۷.0.0.1/": "invalid_url",
    "wss://127⒈1/": "invalid_url",
    "wss://exa․mple.com/": "invalid_url",
    "wss://exam‥ple.com/": "invalid_url",
    "wss://example.com⁄path/": "invalid_url",
    "wss://example.com：443/": "invalid_url",
    "wss://example＠127.0.0.1/": "invalid_url",
    "wss://［::1］/": "invalid_url",
    "wss://foo.local\u00ad/": "invalid_url",
    "wss://xn--/": "invalid_url",
    "wss://xn--127-/": "invalid_url",
    "wss://1.1.1.1;@127.0.0.1/": "invalid_url",
    "wss://" + "ü" * 4000: "invalid_url",
    # IPv6
    "wss://[::1]/": "blocked_address",
    "wss://[::]/": "blocked_address",
    "wss://[0:0:0:0:0:0:0:1]/": "blocked_address",
    "wss://[fe80::1%25eth0]/": "invalid_url",
    "wss://[fe80::1%eth0]/": "invalid_url",
    "wss://[2606:4700::1%eth0]/": "invalid_url",
    "wss://[fe80::1]/": "blocked_address",
    "wss://[fec0::1]/": "blocked_address",
    "wss://[fc00::1]/": "blocked_address",
    "wss://[fd00:ec2::254]/": "blocked_address",
    "wss://[ff02::1]/": "blocked_address",
    "wss://[ff0e::1]/": "blocked_address",
    "wss://[::ffff:127.0.0.1]/": "blocked_address",
    "wss://[::ffff:a9fe:a9fe]/": "blocked_address",
    "wss://[::ffff:8.8.8.8]/": "blocked_address",
    "wss://[::127.0.0.1]/": "blocked_address",
    "wss://[64:ff9b::a9fe:a9fe]/": "blocked_address",
    "wss://[64:ff9b:1::a00:1]/": "blocked_address",
    "wss://[2002:7f00:1::]/": "blocked_address",
    "wss://[2001::1]/": "blocked_address",
    "wss://[2001:db8::1]/": "blocked_address",
    "wss://[2001:2::1]/": "blocked_address",
    "wss://[3fff::1]/": "blocked_address",
    "wss://[5f00::1]/": "blocked_address",
    "wss://[100::1]/": "blocked_address",
    "wss://[::1%lo]/": "invalid_url",
    "wss://[::1%]/": "invalid_url",
    "wss://[::ffff:7f00:1%251]/": "invalid_url",
    "wss://[0:0:0:0:0:ffff:127.0.0.1]/": "blocked_address",
    "wss://[v1.fe80]/": "invalid_url",
    "wss://[::1]@1.1.1.1/": "invalid_url",
    "wss://[::1/": "invalid_url",
    "wss://::1/": "invalid_url",
    "wss://[1.2.3.4]/": "invalid_url",
    "wss://[]/": "invalid_url",
    "wss://[g::1]/": "invalid_url",
    "wss://[::1]evil.com/": "invalid_url",
    # Length
    "wss://example.com/" + "a" * (MAX_URL_LENGTH - 17): "invalid_url",
    "wss://example.com/" + "ü" * 700: "invalid_url",
    "wss://example.com/" + "a" * 9000: "invalid_url",
}

FINE = {
    "WSS://Feed.Example.COM/ws": "wss://feed.example.com/ws",
    "wss://h.example:443/": "wss://h.example/",
    "wss://h.example:00443/": "wss://h.example/",
    "wss://h.example:8443/a/../b//c;d?x=1&y=/?": "wss://h.example:8443/a/../b//c;d?x=1&y=/?",
    "wss://h.example": "wss://h.example/",
    "wss://h.example?x=1": "wss://h.example/?x=1",
    "wss://h.example./": "wss://h.example/",
    "wss://例え.テスト/": "wss://xn--r8jz45g.xn--zckzah/",
    "wss://xn--r8jz45g.xn--zckzah/": "wss://xn--r8jz45g.xn--zckzah/",
    "wss://faß.example/": "wss://xn--fa-hia.example/",
    "wss://exa_mple.com/": "wss://exa_mple.com/",
    "wss://h.example/päth?q=ü": "wss://h.example/p%C3%A4th?q=%C3%BC",
    "wss://h.example/%C3%A4?q=%3F": "wss://h.example/%C3%A4?q=%3F",
    'wss://h.example/"<>{}|^`?"<>{}|^`[]': "wss://h.example/%22%3C%3E%7B%7D%7C%5E%60?%22%3C%3E%7B%7D%7C%5E%60%5B%5D",
    "wss://8.8.8.8/": "wss://8.8.8.8/",
    "wss://[2606:4700:0:0::1111]:8443/x": "wss://[2606:4700::1111]:8443/x",
    "wss://127.0.0.1.nip.io/": "wss://127.0.0.1.nip.io/",
    "wss://example.com/" + "a" * (MAX_URL_LENGTH - 18): "wss://example.com/" + "a" * (MAX_URL_LENGTH - 18),
}

BLOCKED_ANSWERS = [
    "127.0.0.1",
    "10.1.2.3",
    "169.254.169.254",
    "100.100.100.200",
    "::1",
    "fe80::1",
    "fd00:ec2::254",
    "::ffff:10.0.0.1",
    "64:ff9b::7f00:1",
    "2002:a00:1::1",
]


def test_the_table_is_long_enough() -> None:
    assert len(HOSTILE) >= 80


@pytest.mark.parametrize(("url", "code"), HOSTILE.items(), ids=lambda value: ascii(value)[:60])
def test_hostile_urls_are_refused(url: str, code: str) -> None:
    with pytest.raises(Refusal) as refused:
        check_url(url, CLOSED)
    assert refused.value.code == code
    assert refused.value.field == "url"


@pytest.mark.parametrize(("url", "sent"), FINE.items(), ids=lambda value: ascii(value)[:60])
def test_public_urls_are_sent_in_one_spelling(url: str, sent: str) -> None:
    checked = check_url(url, CLOSED)
    assert checked.text == sent
    assert check_url(checked.text, CLOSED) == checked
    assert checked.text.isascii()


def test_host_header_and_name_for_tls() -> None:
    assert check_url("wss://H.example:443/", CLOSED).authority == "h.example"
    assert check_url("wss://h.example:80/", CLOSED).authority == "h.example:80"
    six = check_url("wss://[2606:4700::1111]:444/", CLOSED)
    assert (six.host, six.authority, six.port) == ("2606:4700::1111", "[2606:4700::1111]:444", 444)
    assert six.address == ip_address("2606:4700::1111")
    assert check_url("wss://h.example/", CLOSED).address is None


@pytest.mark.parametrize("address", BLOCKED_ANSWERS)
def test_a_good_name_may_not_resolve_to_a_bad_address(address: str) -> None:
    checked = check_url("wss://rebind.example/", CLOSED)
    checked.check_address(ip_address("93.184.216.34"))
    with pytest.raises(Refusal, match="not a public address"):
        checked.check_address(ip_address(address))
    with pytest.raises(Refusal):
        check_address(ip_address(address), CLOSED)


def test_the_allow_list_opens_what_it_names_and_nothing_else() -> None:
    for url in (
        "ws://localhost:8080/x",
        "ws://127.0.0.1:8080/",
        "ws://[::1]/",
        "wss://10.9.8.7/",
        "ws://feed.internal/",
    ):
        check_url(url, LOCAL)
    for url in ("ws://127.0.0.2/", "wss://192.168.0.1/", "ws://example.com/", "ws://8.8.8.8/", "wss://sub.localhost/"):
        with pytest.raises(Refusal):
            check_url(url, LOCAL)
    with pytest.raises(Refusal, match="wss"):
        check_url("http://localhost/", LOCAL)


def test_a_listed_name_may_resolve_to_private_addresses_but_not_to_credentials() -> None:
    checked = check_url("ws://localhost/", LOCAL)
    for address in ("127.0.0.1", "192.168.0.1", "::1", "fd12::1"):
        checked.check_address(ip_address(address))
    for address in ("169.254.170.2", "169.254.169.254", "fe80::1", "fd00:ec2::254"):
        with pytest.raises(Refusal):
            checked.check_address(ip_address(address))


def test_an_unlisted_name_may_resolve_into_a_listed_network() -> None:
    checked = check_url("wss://db.example/", LOCAL)
    checked.check_address(ip_address("10.0.0.5"))
    with pytest.raises(Refusal):
        checked.check_address(ip_address("192.168.0.5"))


def test_wide_networks_do_not_open_the_instance_services() -> None:
    everything = UrlPolicy.parse("0.0.0.0/0,::/0")
    check_url("ws://192.168.0.1/", everything)
    for url in ("ws://169.254.169.254/", "ws://[fe80::1]/", "ws://[fd00:ec2::254]/"):
        with pytest.raises(Refusal):
            check_url(url, everything)
    check_url("ws://169.254.169.254/", UrlPolicy.parse("169.254.169.254"))


@pytest.mark.parametrize("setting", ["10.0.0.1/8", "300.1.1.1", "a b", "http://x", "[::1]"])
def test_a_broken_allow_list_is_refused(setting: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        UrlPolicy.parse(setting)


def test_nothing_shows_the_query() -> None:
    checked = check_url("wss://h.example/a?token=SENTINEL-93f1", CLOSED)
    assert "SENTINEL" not in repr(checked) + checked.public
    for bad in (
        "ws://h.example/?SENTINEL",
        "wss://h.example:0/?SENTINEL",
        "wss://SENTINEL@h.example/",
        "wss://SENT INEL/",
    ):
        with pytest.raises(Refusal) as refused:
            check_url(bad, CLOSED)
        assert "SENT" not in str(refused.value)
