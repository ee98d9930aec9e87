"""Stubs of the repositories that Bazel 4.2 fetches for any build, even one of Python.

They hand Bazel's built-in rules back, which is all that a Python project needs.
"""

def _stub(context):
    context.file("BUILD", context.attr.build)
    if context.attr.rules:
        folder = context.attr.name[len("rules_"):]
        context.file(folder + "/BUILD")
        context.file(folder + "/defs.bzl", "\n".join([
            "{rule} = native.{rule}".format(rule = rule)
            for rule in context.attr.rules
        ]))

stub = repository_rule(
    implementation = _stub,
    attrs = {"build": attr.string(), "rules": attr.string_list()},
)
