"""Many clients at once of `gateloop mlx-lm server`; `benchmarks/serving.py` is the long form."""

from helpers.mlx_lm_server import MALFORMED, Clients, Single, serving


def test_many_clients_get_the_answers_of_single_runs(directory, tmp_path):
    with serving(directory, tmp_path / "log") as server:
        clients = Clients(server, Single(directory))
        clients.run(requests=40, clients=8)
        assert clients.wrong == []
        assert clients.cached > 0
        assert clients.counts["cancelled"] > 0
        for path, body in MALFORMED:
            assert clients.refuse(path, body) == ("malformed", "")
        assert server.is_healthy()
        assert "generation thread died" not in (tmp_path / "log").read_text()
