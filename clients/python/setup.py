"""Everything is in pyproject.toml. Where build_wheel.py has put the library into the package, the wheel is of one platform, and
of every Python: ctypes loads the library."""
import os

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel

HAS_LIBRARY = os.path.exists(os.path.join(os.path.dirname(os.path.abspath(__file__)), "oar/lib"))


class Platform(Distribution):
    def has_ext_modules(self):
        return HAS_LIBRARY


class Wheel(bdist_wheel):
    def get_tag(self):
        return ("py3", "none", super().get_tag()[2])


setup(distclass=Platform, cmdclass={"bdist_wheel": Wheel})
