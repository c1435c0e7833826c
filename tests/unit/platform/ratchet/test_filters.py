"""What filters of lists say of a value that they cannot use."""

import django_filters
from django.http import QueryDict

from apps.accounts.models import User
from ratchet.filters import FilterSet, TruthFilter


class Wanted(FilterSet):
    state = django_filters.MultipleChoiceFilter(choices=[("queued", "Queued"), ("running", "Running")])
    share = django_filters.ChoiceFilter(choices=[("50%", "half"), ("100%", "all")])
    flag = TruthFilter()


def wrong(query: str) -> dict[str, list[str]]:
    return dict(Wanted(QueryDict(query), queryset=User.objects.none()).errors)


def test_the_choices_are_named():
    assert wrong("state=queued&state=runing&share=a&flag=1") == {
        "state": ["must be one of queued, running"],
        "share": ["must be one of 50%, 100%"],
        "flag": ["must be one of true, false"],
    }


def test_a_choice_is_taken():
    assert wrong("state=queued&state=running&share=50%25&flag=true") == {}
