"""Filters of the API's lists that take no odd value for none: a misread filter shows too much."""

from typing import Any, ClassVar

import django_filters
from django import forms
from django.db import models
from django_filters.filterset import FILTER_FOR_DBFIELD_DEFAULTS
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema_field


@extend_schema_field(OpenApiTypes.BOOL)
class TruthFilter(django_filters.TypedChoiceFilter):
    """`true` or `false`; anything else is refused."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        choices = (("true", "true"), ("false", "false"))
        super().__init__(*args, choices=choices, coerce=lambda text: text == "true", **kwargs)


@extend_schema_field(OpenApiTypes.INT)
class WholeFilter(django_filters.NumberFilter):
    """A whole number; django-filter's own would take 1.5 for 1."""

    field_class = forms.IntegerField


_WHOLE = (models.IntegerField, models.BigIntegerField, models.SmallIntegerField, models.PositiveIntegerField,
          models.PositiveSmallIntegerField, models.PositiveBigIntegerField)  # fmt: skip


class FilterSet(django_filters.FilterSet):
    """As django-filter's, with strict truth values and whole numbers; a value that is no choice is told the choices."""

    FILTER_DEFAULTS: ClassVar[dict[Any, Any]] = {
        **FILTER_FOR_DBFIELD_DEFAULTS,
        models.BooleanField: {"filter_class": TruthFilter},
        **{kind: {"filter_class": WholeFilter} for kind in _WHOLE},
    }

    @property
    def form(self) -> Any:
        form: Any = super().form
        for field in form.fields.values():
            if isinstance(field, forms.ChoiceField) and not isinstance(field, forms.ModelChoiceField):
                choices: Any = field.choices
                names = ", ".join(str(value) for value, _ in choices if value != "")
                field.error_messages["invalid_choice"] = f"must be one of {names.replace('%', '%%')}"
        return form
