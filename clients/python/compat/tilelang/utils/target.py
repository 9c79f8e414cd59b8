# SPDX-License-Identifier: Apache-2.0
from kiln import notices
from kiln.target import resolve

from .. import _absent


def determine_target(target="auto", return_object=False):
    """The target as Kiln names it, such as "cuda:sm_90a". ``return_object`` has no effect, with a warning."""
    notices.unused("determine_target", return_object=(return_object, (False,), "a target is its name; leave it out"))
    return resolve(target)


__getattr__ = _absent.getter(__name__)
