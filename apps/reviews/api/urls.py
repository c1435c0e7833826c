"""URLs of reviews below /api/v1/."""

from django.urls import path

from apps.reviews.api import views

urlpatterns = [
    path("reviews/next/", views.NextItem.as_view(), name="api-review-next"),
    path("reviews/summary/", views.ReviewSummary.as_view(), name="api-review-summary"),
    path("reviews/labels/", views.LabelList.as_view(), name="api-review-labels"),
    path("reviews/<uuid:pk>/label/", views.LabelItem.as_view(), name="api-review-label"),
    path("reviews/<uuid:pk>/skip/", views.SkipItem.as_view(), name="api-review-skip"),
    path("reviews/<uuid:pk>/undo/", views.UndoLabel.as_view(), name="api-review-undo"),
]
