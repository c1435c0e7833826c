"""URLs of the review pages."""

from django.urls import path

from apps.reviews import views

urlpatterns = [
    path("review/", views.review, name="review"),
    path("review/rates/", views.rates, name="review-rates"),
]
