import importlib, pkgutil, longmlm, pytest, pipelines
names=[m.name for pk in (longmlm,pipelines) for m in pkgutil.walk_packages(pk.__path__, pk.__name__+".")]
@pytest.mark.parametrize("name", names)
def test_i(name):
    importlib.import_module(name)
